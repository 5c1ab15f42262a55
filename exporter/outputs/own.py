"""The metrics of the exporter's own state."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from itertools import accumulate
from typing import Final

from .. import __version__
from ..ledger.audience import Audience
from ..ledger.labels import clean_label
from ..ledger.pricing import library_version
from ..ledger.stats import LAG_EDGES
from .metric import Buckets, Metric, Rows, Type, View, by_value


def _one(value: Callable[[View], float]) -> Callable[[View], Rows]:
    return lambda view: [((), value(view))]


def _files(view: View) -> Rows:
    for root, count in view.stats.files.items():
        yield (clean_label(_below_home(root)),), count


def _below_home(path: str) -> str:
    """Return a path with `~` for the user's home, so that no user name becomes a label."""
    home = os.path.expanduser("~")
    known = os.path.isabs(home) and home != os.path.dirname(home)
    if known and os.path.join(path, "").startswith(os.path.join(home, "")):
        return "~" + path[len(home) :]
    return path


def _lag(view: View) -> Rows:
    counts = tuple(accumulate(view.stats.lag_buckets))
    yield (), Buckets(LAG_EDGES, counts, view.stats.lag_sum)


OWN: Final = (
    Metric(
        "gemini_cli_exporter_build_info",
        Type.GAUGE,
        "Version of the exporter and of Python; the value is always 1.",
        ("version", "python_version"),
        lambda _: [((__version__, platform.python_version()), 1)],
    ),
    Metric(
        "gemini_cli_exporter_price_library_info",
        Type.GAUGE,
        "Version of genai-prices, the source of published prices; the value is always 1.",
        ("version",),
        lambda _: [((library_version(),), 1)],
    ),
    Metric(
        "gemini_cli_exporter_start_timestamp_seconds",
        Type.GAUGE,
        "When the exporter started.",
        (),
        _one(lambda view: view.stats.started),
    ),
    Metric(
        "gemini_cli_exporter_files",
        Type.GAUGE,
        "Transcripts found by the last look at all folders.",
        ("root",),
        _files,
    ),
    Metric(
        "gemini_cli_exporter_read_bytes",
        Type.COUNTER,
        "Bytes read from transcripts since the start.",
        (),
        _one(lambda view: view.stats.read_bytes),
    ),
    Metric(
        "gemini_cli_exporter_pending_bytes",
        Type.GAUGE,
        "Bytes of transcripts that were found and are not read yet.",
        (),
        _one(lambda view: view.stats.pending_bytes),
    ),
    Metric(
        "gemini_cli_exporter_pending_turns",
        Type.GAUGE,
        "Turns that were read and wait until the ledger can be written.",
        (),
        _one(lambda view: view.stats.pending_turns),
    ),
    Metric(
        "gemini_cli_exporter_records_skipped",
        Type.COUNTER,
        "Records, or parts of one, that were not counted as they stand.",
        ("reason",),
        by_value(lambda view: view.stats.skipped),
    ),
    Metric(
        "gemini_cli_exporter_file_errors",
        Type.COUNTER,
        "Failed attempts to open or list transcripts and what names their projects.",
        ("reason",),
        by_value(lambda view: view.stats.file_errors),
    ),
    Metric(
        "gemini_cli_exporter_scans",
        Type.COUNTER,
        "Complete looks at all folders.",
        (),
        _one(lambda view: view.stats.scans),
    ),
    Metric(
        "gemini_cli_exporter_last_scan_timestamp_seconds",
        Type.GAUGE,
        "When the last complete look at all folders ended.",
        (),
        _one(lambda view: view.stats.last_scan),
    ),
    Metric(
        "gemini_cli_exporter_watcher_info",
        Type.GAUGE,
        "How changes are noticed, by file events or by polling; the value is always 1.",
        ("mode",),
        lambda view: [((view.stats.watcher_mode,), 1)],
    ),
    Metric(
        "gemini_cli_exporter_watcher_restarts",
        Type.COUNTER,
        "Times that the file watcher was found dead and started again.",
        (),
        _one(lambda view: view.stats.watcher_restarts),
    ),
    Metric(
        "gemini_cli_exporter_ingest_lag_seconds",
        Type.HISTOGRAM,
        "Time from a turn's recorded time to its counting, for turns since the start.",
        (),
        _lag,
    ),
    Metric(
        "gemini_cli_exporter_ledger_bytes",
        Type.GAUGE,
        "Size of the ledger on disk, its write-ahead log included.",
        (),
        _one(lambda view: view.ledger.size()),
    ),
    Metric(
        "gemini_cli_exporter_ledger_turns",
        Type.GAUGE,
        "Turns in the ledger.",
        (),
        _one(lambda view: view.snapshot.ledger_turns),
    ),
    Metric(
        "gemini_cli_exporter_ledger_created_timestamp_seconds",
        Type.GAUGE,
        "When the ledger was made; another value means that it was replaced.",
        (),
        _one(lambda view: view.ledger.created / 1000),
    ),
    Metric(
        "gemini_cli_exporter_ledger_writable",
        Type.GAUGE,
        "1 if the last attempt to write the ledger succeeded, else 0.",
        (),
        _one(lambda view: int(view.stats.ledger_writable)),
    ),
    Metric(
        "gemini_cli_exporter_ledger_errors",
        Type.COUNTER,
        "Failed attempts to write the ledger.",
        (),
        _one(lambda view: view.stats.ledger_errors),
    ),
    Metric(
        "gemini_cli_exporter_series_held",
        Type.GAUGE,
        "New series that scrapers are shown as 0 for now, so that they see the first value rise.",
        (),
        _one(lambda view: len(view.snapshot.held[Audience.SCRAPERS])),
    ),
    Metric(
        "gemini_cli_exporter_otlp_exports",
        Type.COUNTER,
        "Requests by OTLP since the start, failed ones included.",
        (),
        _one(lambda view: view.stats.otlp_exports),
    ),
    Metric(
        "gemini_cli_exporter_otlp_export_failures",
        Type.COUNTER,
        "Requests by OTLP that were not answered, or of which something was not taken.",
        (),
        _one(lambda view: view.stats.otlp_export_failures),
    ),
    Metric(
        "gemini_cli_exporter_label_overflow",
        Type.COUNTER,
        "Names beyond the cap of their label, counted as other.",
        ("label",),
        by_value(lambda view: view.ledger.overflow),
    ),
)
