"""The list of metrics: name, type, help, labels, and how each is read from the ledger."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import accumulate
from typing import Final, NamedTuple

from .. import __version__
from ..ledger.labels import clean_label
from ..ledger.memory import RECENT_MS
from ..ledger.model import KINDS, PICO, PROMPT_EDGES
from ..ledger.pricing import library_version
from ..ledger.stats import LAG_EDGES, Stats
from ..ledger.store import Ledger
from ..ledger.totals import PairTotal, Snapshot, ToolTotal


class Type(StrEnum):
    """Metric types, as the exposition formats spell them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Buckets(NamedTuple):
    """A histogram's value: cumulative counts by upper edge, +Inf last, and the sum."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


class View(NamedTuple):
    """What the metrics are read from; `now` is in seconds since the epoch."""

    snapshot: Snapshot
    stats: Stats
    ledger: Ledger
    now: float


Value = float | Buckets
Rows = Iterable[tuple[tuple[str, ...], Value]]


class Metric(NamedTuple):
    """One metric: its name carries no `_total`; `read` gives label values and value of each series.

    An empty label value means that the series does not have the label.
    """

    name: str
    type: Type
    help: str
    labels: tuple[str, ...]
    read: Callable[[View], Rows]


def _pairs(value: Callable[[PairTotal], float]) -> Callable[[View], Rows]:
    def read(view: View) -> Rows:
        for (project, model), total in view.snapshot.pairs.items():
            yield (model, project), value(total)

    return read


def _tokens(view: View) -> Rows:
    for (project, model), total in view.snapshot.pairs.items():
        for kind, tokens in zip(KINDS, total.tokens, strict=True):
            yield (kind, model, project), tokens


def _cost(view: View) -> Rows:
    for (project, model), total in view.snapshot.pairs.items():
        for kind, pico in zip(KINDS, total.cost or (), strict=bool(total.cost)):
            yield (kind, model, project), pico / PICO


def _savings(view: View) -> Rows:
    for (project, model), total in view.snapshot.pairs.items():
        if total.cost is not None:
            yield (model, project), total.savings / PICO


def _unpriced(view: View) -> Rows:
    for (project, model), total in view.snapshot.pairs.items():
        if total.unpriced_tokens:
            yield (model, project), total.unpriced_tokens


def _tools(value: Callable[[ToolTotal], int]) -> Callable[[View], Rows]:
    def read(view: View) -> Rows:
        for (project, model, tool), total in view.snapshot.tools.items():
            yield (model, project, tool), value(total)

    return read


def _prompts(view: View) -> Rows:
    edges = tuple(map(float, PROMPT_EDGES))
    for model, sizes in view.snapshot.prompts.items():
        yield (model,), Buckets(edges, tuple(accumulate(sizes.buckets)), sizes.tokens)


def _sessions(view: View) -> Rows:
    for project, activity in view.snapshot.activity.items():
        yield (project,), activity.sessions


def _active(view: View) -> Rows:
    horizon = view.now * 1000 - RECENT_MS
    for project, activity in view.snapshot.activity.items():
        yield (project,), sum(time > horizon for time in activity.recent)


def _last_turn(view: View) -> Rows:
    for project, activity in view.snapshot.activity.items():
        yield (project,), activity.last_turn / 1000


def _prices(view: View) -> Rows:
    for model, rate in view.snapshot.prices.items():
        for kind, pico in zip(KINDS, rate.by_kind(), strict=True):
            yield (kind, model), pico / 1_000_000


def _counts(read: Callable[[View], Mapping[str, float]]) -> Callable[[View], Rows]:
    def rows(view: View) -> Rows:
        for value, count in list(read(view).items()):
            yield (value,), count

    return rows


def _one(value: Callable[[View], float]) -> Callable[[View], Rows]:
    return lambda view: [((), value(view))]


def _files(view: View) -> Rows:
    home = os.path.expanduser("~")
    for root, count in view.stats.files.items():
        below_home = os.path.commonpath([root, home]) == home
        yield (clean_label("~" + root[len(home) :] if below_home else root),), count


def _lag(view: View) -> Rows:
    counts = tuple(accumulate(view.stats.lag_buckets))
    yield (), Buckets(LAG_EDGES, counts, view.stats.lag_sum)


_PAIR: Final = ("model", "project")
_KIND: Final = ("kind", "model", "project")
_TOOL: Final = ("model", "project", "tool")

USAGE: Final = (
    Metric(
        "gemini_cli_turns",
        Type.COUNTER,
        "Model responses with recorded usage, each message id counted once.",
        _PAIR,
        _pairs(lambda total: total.turns),
    ),
    Metric(
        "gemini_cli_tokens",
        Type.COUNTER,
        "Tokens by disjoint kind: input is the recorded input without cached, "
        "output is without thoughts.",
        _KIND,
        _tokens,
    ),
    Metric(
        "gemini_cli_cost_usd",
        Type.COUNTER,
        "Estimated cost at published prices: tokens of the same labels times each turn's own rate.",
        _KIND,
        _cost,
    ),
    Metric(
        "gemini_cli_cache_savings_usd",
        Type.COUNTER,
        "Estimated amount that cached tokens would have cost more at each turn's own input rate.",
        _PAIR,
        _savings,
    ),
    Metric(
        "gemini_cli_unpriced_tokens",
        Type.COUNTER,
        "Tokens of all kinds whose model had no published price when they were counted.",
        _PAIR,
        _unpriced,
    ),
    Metric(
        "gemini_cli_unpriced_turns",
        Type.GAUGE,
        "Turns without a price now, which the estimated cost does not contain.",
        ("model",),
        _counts(lambda view: view.snapshot.unpriced_turns),
    ),
    Metric(
        "gemini_cli_tool_calls",
        Type.COUNTER,
        "Finished tool calls, failed and cancelled ones included, by model of the calling message.",
        _TOOL,
        _tools(lambda total: total.calls),
    ),
    Metric(
        "gemini_cli_tool_errors",
        Type.COUNTER,
        "Tool calls recorded with status error.",
        _TOOL,
        _tools(lambda total: total.errors),
    ),
    Metric(
        "gemini_cli_tool_cancellations",
        Type.COUNTER,
        "Tool calls recorded with status cancelled.",
        _TOOL,
        _tools(lambda total: total.cancellations),
    ),
    Metric(
        "gemini_cli_turn_prompt_tokens",
        Type.HISTOGRAM,
        "Prompt size of turns: recorded input with cached tokens, plus tool tokens, "
        "as it decides the price tier.",
        ("model",),
        _prompts,
    ),
    Metric(
        "gemini_cli_sessions",
        Type.COUNTER,
        "Distinct main sessions with a turn, in the project of their first.",
        ("project",),
        _sessions,
    ),
    Metric(
        "gemini_cli_active_sessions",
        Type.GAUGE,
        "Sessions with a turn in the last 5 minutes, by the recorded time of the turn.",
        ("project",),
        _active,
    ),
    Metric(
        "gemini_cli_last_turn_timestamp_seconds",
        Type.GAUGE,
        "Recorded time of the latest turn.",
        ("project",),
        _last_turn,
    ),
    Metric(
        "gemini_cli_price_usd_per_million_tokens",
        Type.GAUGE,
        "Price of the base tier after overrides at the model's latest turn, for display.",
        ("kind", "model"),
        _prices,
    ),
)
"""What was used and what it cost."""

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
        _counts(lambda view: view.stats.skipped),
    ),
    Metric(
        "gemini_cli_exporter_file_errors",
        Type.COUNTER,
        "Failed attempts to open or list transcripts.",
        ("reason",),
        _counts(lambda view: view.stats.file_errors),
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
        "gemini_cli_exporter_label_overflow",
        Type.COUNTER,
        "Names beyond the cap of their label, counted as other.",
        ("label",),
        _counts(lambda view: view.ledger.overflow),
    ),
)
"""The exporter's own state."""

CATALOG: Final = USAGE + OWN


def rows(metric: Metric, view: View) -> Iterator[tuple[tuple[str, ...], Value]]:
    """Return the series of a metric, sorted by label values."""
    return iter(sorted(metric.read(view), key=lambda row: row[0]))
