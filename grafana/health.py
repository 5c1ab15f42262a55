"""The dashboard of the exporter itself: does it see everything, and count all that it sees?"""

from __future__ import annotations

from .frame import Page
from .panels import (
    ANY_IS_BAD,
    ANY_IS_WORTH_A_LOOK,
    BYTES,
    COUNT,
    RATIO,
    SECONDS,
    Column,
    Limits,
    Panel,
    bars,
    course,
    number,
    rows,
)
from .queries import Form, Query, exporter, rate, rate_by, total
from .shared import GROWN, RATE

_OWN = "gemini_cli_exporter_"
_EACH = "job, instance"


def page() -> Page:
    """Return the dashboard."""
    return Page(
        "gemini-cli-health",
        "Gemini CLI / Exporter health",
        "Whether the exporters see all transcripts, count what they see and can keep it.",
        {
            "Now": [*_now(), _exporters()],
            "What was not counted": [_skipped(), _file_errors(), _unpriced(), _faults()],
            "Reading": [_behind(), _lag(), _read(), _scans(), _files(), _held()],
            "Ledger and process": [_ledger(), _turns(), _memory(), _cpu()],
        },
        hide_usage=True,
    )


def _now() -> list[Panel]:
    return [
        number(
            "Exporters that answer",
            "Exporters that answered Prometheus's last scrape. Exact; a machine that sleeps is not "
            "among them.",
            COUNT,
            f"count({_own('build_info')})",
        ),
        number(
            "Bytes behind",
            "Bytes of transcripts that were found and are not read yet, all exporters together. "
            "Exact at the last scrape. Above 0 for minutes: reading cannot keep up, or is stuck.",
            BYTES,
            f"sum({_own('pending_bytes')})",
            limits=Limits(look=1e6, bad=1e8),
        ),
        number(
            "Turns waiting",
            "Turns that were read and wait until the ledger can be written. Exact at the last "
            "scrape.",
            COUNT,
            f"sum({_own('pending_turns')})",
            limits=ANY_IS_WORTH_A_LOOK,
        ),
        number(
            "Ledger",
            "Whether every exporter's last attempt to write its ledger succeeded. Exact. While "
            "one cannot write, its counters stand still and nothing is lost.",
            COUNT,
            f"min({_own('ledger_writable')})",
            states={"0": ("cannot write", "red"), "1": ("writable", "green")},
        ),
        number(
            "Oldest last look",
            "Time since the last complete look at all folders, of the exporter where it is "
            "longest. Exact.",
            SECONDS,
            f"time() - min({_own('last_scan_timestamp_seconds')})",
            limits=Limits(look=300, bad=1800),
        ),
        number(
            "Series held at 0",
            "New series that are still shown as 0, so that Prometheus sees their first value as an "
            "increase. Exact at the last scrape; it falls to 0 within minutes.",
            COUNT,
            f"sum({_own('series_held')})",
        ),
    ]


def _exporters() -> Panel:
    running = _since("start_timestamp_seconds", "version", "build_info")
    age = _since("ledger_created_timestamp_seconds", "mode", "watcher_info")
    return rows(
        "Exporters",
        "Each exporter's version, its way of noticing changes (by file events, or slower by "
        "polling), how long it runs, and the age, size and turns of its ledger. Exact at the last "
        "scrape. A ledger that is younger than it should be was replaced.",
        {"instance": "Instance", "job": "Job", "version": "Version", "mode": "Watcher"},
        [
            Column("Running for", SECONDS, running),
            Column("Ledger age", SECONDS, age),
            Column("Ledger size", BYTES, f"max by ({_EACH}) ({_own('ledger_bytes')})"),
            Column("Turns", COUNT, f"max by ({_EACH}) ({_own('ledger_turns')})"),
        ],
        sort="Turns",
        span=24,
        height=6,
    )


def _skipped() -> Panel:
    return _reasons(
        "Skipped records by reason",
        "Records, or parts of one, that were not counted as they stand. Each reason is explained "
        f"in the exporter's documentation. {GROWN}",
        "records_skipped_total",
        "reason",
    )


def _file_errors() -> Panel:
    return _reasons(
        "File errors by reason",
        "Failed attempts to open or list transcripts. They are tried again, so this says how often "
        f"it failed and not how many files are missing. {GROWN}",
        "file_errors_total",
        "reason",
    )


def _unpriced() -> Panel:
    turns = f"sum by (model) ({exporter('gemini_cli_unpriced_turns')})"
    return bars(
        "Turns without a price by model",
        "All recorded turns of models without a known price: no total of money contains them. "
        "Exact. Empty is good.",
        COUNT,
        Query(f"sort_desc({turns} > 0)", "{{model}}", Form.AT_END),
        limits=ANY_IS_WORTH_A_LOOK,
        empty="all turns have a price",
        span=6,
        height=6,
    )


def _faults() -> Panel:
    return bars(
        "Faults",
        "Failed writes of the ledger, failed pushes by OTLP, restarts of a dead file watcher, and "
        f"names beyond the cap of their label, which are counted as other. {GROWN}",
        COUNT,
        Query(total(_own("ledger_errors_total")), "ledger errors", Form.AT_END),
        Query(total(_own("otlp_export_failures_total")), "failed pushes", Form.AT_END),
        Query(total(_own("watcher_restarts_total")), "watcher restarts", Form.AT_END),
        Query(total(_own("label_overflow_total"), "label"), "overflow {{label}}", Form.AT_END),
        limits=ANY_IS_BAD,
        span=6,
        height=6,
    )


def _behind() -> Panel:
    return course(
        "Bytes behind by instance",
        "Bytes of transcripts that were found and are not read yet, at each scrape. Exact.",
        BYTES,
        _each("pending_bytes"),
    )


def _lag() -> Panel:
    buckets = rate(_own("ingest_lag_seconds_bucket"), "le")
    return course(
        "Ingest lag",
        "Time from a turn's recorded time to its counting: the median and the 99th percentile, "
        "interpolated by Prometheus between the histogram's edges, for turns counted around each "
        "point. Old transcripts that are found late lift it.",
        SECONDS,
        Query(f"histogram_quantile(0.5, {buckets})", "median"),
        Query(f"histogram_quantile(0.99, {buckets})", "99th percentile"),
    )


def _read() -> Panel:
    return course(
        "Bytes read per second by instance",
        f"Bytes read from transcripts: about what the CLI writes. {RATE}",
        BYTES,
        rate_by(_own("read_bytes_total"), "instance"),
    )


def _scans() -> Panel:
    return course(
        "Complete looks per hour by instance",
        f"Complete looks at all folders; file events make reading quick between them. {RATE}",
        COUNT,
        rate_by(_own("scans_total"), "instance", 3600),
    )


def _files() -> Panel:
    return course(
        "Transcripts by instance and folder",
        "Transcripts found by the last look. Exact. It falls when Gemini CLI deletes old ones, "
        "which changes no total.",
        COUNT,
        Query(_own("files"), "{{instance}} {{root}}"),
    )


def _held() -> Panel:
    return course(
        "Series held at 0 by instance",
        "New series that are still shown as 0, at each scrape. Exact.",
        COUNT,
        _each("series_held"),
    )


def _ledger() -> Panel:
    return course(
        "Ledger size by instance",
        "Size of the ledger on disk, its write-ahead log included, at each scrape. Exact.",
        BYTES,
        _each("ledger_bytes"),
    )


def _turns() -> Panel:
    return course(
        "Ledger turns by instance",
        "Turns in the ledger at each scrape. Exact; it never falls.",
        COUNT,
        _each("ledger_turns"),
    )


def _memory() -> Panel:
    return course(
        "Memory by instance",
        "Resident memory of the exporter's process, as the kernel says it.",
        BYTES,
        Query(exporter("process_resident_memory_bytes"), "{{instance}}"),
    )


def _cpu() -> Panel:
    return course(
        "CPU by instance",
        f"CPU time of the exporter's process per second: 100% is one core. {RATE}",
        RATIO,
        rate_by(exporter("process_cpu_seconds_total"), "instance"),
    )


def _reasons(title: str, about: str, name: str, label: str) -> Panel:
    grown = total(_own(name), label)
    return bars(
        title,
        about,
        COUNT,
        Query(f"sort_desc({grown} > 0)", f"{{{{{label}}}}}", Form.AT_END),
        limits=ANY_IS_WORTH_A_LOOK,
        empty="none",
        span=6,
        height=6,
    )


def _each(name: str) -> Query:
    return Query(_own(name), "{{instance}}")


def _since(name: str, label: str, info: str) -> str:
    """The seconds since a time, with a label that another metric of the same exporter carries."""
    carrier = f"max by ({_EACH}, {label}) ({_own(info)})"
    since = f"(time() - max by ({_EACH}) ({_own(name)}))"
    return f"{since} * on ({_EACH}) group_left ({label}) {carrier}"


def _own(name: str) -> str:
    return exporter(_OWN + name)
