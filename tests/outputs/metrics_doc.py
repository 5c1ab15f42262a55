"""The reference of all metrics, `docs/metrics.md`, written from the catalogue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from exporter.ledger.budgets import Period
from exporter.ledger.labels import CAPS
from exporter.ledger.model import KINDS
from exporter.outputs.budget import BUDGET
from exporter.outputs.catalog import CATALOG
from exporter.outputs.genai import GENAI
from exporter.outputs.metric import Metric, Type
from exporter.outputs.otlp_names import attributed
from exporter.outputs.own import OWN
from exporter.outputs.usage import USAGE
from exporter.transcripts.files import ERROR_REASONS
from exporter.transcripts.shapes import Reason

PROCESS: Final = (
    ("process_cpu_seconds_total", "counter", "User and system time."),
    ("process_resident_memory_bytes", "gauge", "Memory in use."),
    ("process_virtual_memory_bytes", "gauge", "Address space, mostly not in use."),
    ("process_open_fds", "gauge", "Open files, sockets and watches."),
    ("process_max_fds", "gauge", "How many of them there may be."),
)
"""What is shown of the process on Linux, by the Prometheus client library."""

_INTRODUCTION: Final = """\
# Metrics

Everything that `/metrics` shows. This page is written from the program's own list; a test keeps
it so.

## What a counter means

* A counter of usage holds **everything in the ledger**, history included, each recorded reply
  once. A restart continues it at once, and nothing ever makes it fall: copies, resumed sessions,
  deleted transcripts and rewinds change nothing.
* While the very first scan of a ledger runs, and while a damaged ledger is being caught up,
  `/metrics` answers **503**: a half-read history must not look like spending.
* Series are **born together**: with the first turn of a model in a project all its turns and
  token kinds appear, with its first priced turn all costs, with the first call of a tool its
  calls, errors and cancellations. What has no published price has no cost, which is not the same
  as 0.
* A new series is **0 first** for scrapers (requests with the header
  `X-Prometheus-Scrape-Timeout-Seconds`), for `--web.zero-first-hold` from its first delivery:
  only so does `increase()` see its first value. Everybody else always sees true values. What was
  not spent just now (a first scan, a new root, restored files, other label settings) appears at
  its true value at once.
* The **start** of a series is 1 ms before its first turn and never changes.
  `--web.created-timestamps` adds it to OpenMetrics as `_created`.
* **Time** is the recorded time of a turn, not the time of the scrape, for spending by period, the
  last hour and the last turn. These gauges are exact whatever was scraped, slept or restarted, so
  money alerts should use them.
* **Costs are estimates**: recorded tokens at published pay-as-you-go prices, or at yours. They
  are no bill.
* Counters of the exporter itself (`gemini_cli_exporter_…`) begin at 0 with each start.

Names are as Prometheus stores them: a counter ends in `_total`; a histogram has `_bucket` (with
the label `le`), `_sum` and `_count`.

## Labels

| label | values |
|---|---|
"""


_OTLP: Final = """
## Names in OTLP

The same metrics, but for those of the process, as they are [pushed](otlp.md). Receivers that write
to Prometheus make the names above of them again: dots become underscores, a unit that is more than
a word in braces is added, and counters end in `_total`.

| metric | in OTLP | unit |
|---|---|---|"""

_GENAI: Final = """
With `--otlp.genai` also these counters by the semantic conventions for generative AI, which are in
development and may change:

| in OTLP | unit | |
|---|---|---|"""


def render() -> str:
    """Return the page as Markdown."""
    return _INTRODUCTION + "\n".join(
        [
            *map(_row, _labels()),
            *_section("Usage", "From the ledger.", USAGE),
            *_section(
                "Spending and budgets",
                "By the calendar: a day begins at the first instant of its local date, in the zone"
                " of\n`--budget.timezone`, and a week on Monday. A project is shown, in all three"
                " periods, if it\nhas a turn in one of them or a budget.",
                BUDGET,
            ),
            *_section(
                "The exporter itself",
                "Whether it sees everything, how far behind it is, and what it refused.",
                OWN,
            ),
            *_head(
                "The process",
                "On Linux, by the usual names. `process_start_time_seconds` is left out on purpose:"
                " some\ncollectors take it for the start of all counters, and these outlive the"
                " process. There is\n`gemini_cli_exporter_start_timestamp_seconds` instead.",
            ),
            *(_row((f"`{name}`", kind, "", text)) for name, kind, text in PROCESS),
            *_otlp(),
            "",
        ]
    )


def _otlp() -> Iterable[str]:
    yield _OTLP
    for metric in map(attributed, CATALOG):
        unit = f"`{metric.unit}`" if metric.unit else ""
        yield _row((f"`{shown_name(metric.metric)}`", f"`{metric.name}`", unit))
    yield _GENAI
    for metric in GENAI:
        yield _row((f"`{metric.name}`", f"`{metric.unit}`", metric.metric.help))
    yield f"\nTheir attributes are {_several((*GENAI[0].constant, *GENAI[0].keys))}."


def shown_name(metric: Metric) -> str:
    """Return a metric's name as Prometheus stores it, that of a histogram without its suffixes."""
    return metric.name + ("_total" if metric.type is Type.COUNTER else "")


def _labels() -> Iterable[tuple[str, str]]:
    yield "`kind`", f"{_several(KINDS)}: disjoint, so sums are right"
    yield "`model`", f"the recorded name without prefixes; {_cap('model')}"
    yield "`project`", f"name of the project folder, see `--labels.project`; {_cap('project')}"
    yield "`tool`", f"the recorded name of the tool; {_cap('tool')}"
    yield "`period`", _several(Period)
    yield "`reason` of skipped records", _several(sorted(Reason))
    yield "`reason` of file errors", _several(sorted(ERROR_REASONS))
    yield "`label`", f"{_several(sorted(CAPS))}: the labels that have a cap"
    yield "`root`", "the folder that holds `tmp/`, with `~` for the user's home"


def _several(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _cap(label: str) -> str:
    return f"beyond {CAPS[label]:,} names `other`"


def _head(title: str, text: str) -> list[str]:
    return ["", f"## {title}", "", text, "", "| metric | type | labels | |", "|---|---|---|---|"]


def _section(title: str, text: str, metrics: Iterable[Metric]) -> Iterable[str]:
    yield from _head(title, text)
    for metric in metrics:
        yield _row((f"`{shown_name(metric)}`", metric.type, _several(metric.labels), metric.help))


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
