"""Exposition: the catalogue rendered for a scrape, as Prometheus text or OpenMetrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import zip_longest
from typing import Final

from ..ledger.audience import Audience
from ..ledger.budgets import NO_BUDGETS, Budgets
from ..ledger.labels import label_and_owner
from ..ledger.series import START_BEFORE_MS
from ..ledger.stats import Stats
from ..ledger.store import Ledger
from ..ledger.totals import SeriesName
from .catalog import CATALOG, rows
from .escaping import escaped, in_braces, label_part
from .metric import Buckets, Metric, Type, View

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_TEXTS: Final = ("text/plain", "text/*", "*/*", "*")
_HIDDEN: Final = "process_start_time_seconds"
"""Not exposed: collectors take it for the start of all counters, and ours outlive the process."""


def negotiate(accept: str) -> str:
    """Return the content type to answer with: OpenMetrics 1.0.0 if it is asked for, else text.

    The header is read as the scrapers write it; anything odd gets text.
    """
    best, chosen = 0.0, TEXT
    for offer in accept.lower().split(","):
        media, *parameters = (part.strip() for part in offer.split(";"))
        values = dict(part.partition("=")[::2] for part in parameters)
        quality = _quality(values.get("q", "1"))
        if media == "application/openmetrics-text" and values.get("version", "1.0.0") == "1.0.0":
            content_type = OPENMETRICS
        elif media in _TEXTS:
            content_type = TEXT
        else:
            continue
        if quality > best:
            best, chosen = quality, content_type
    return chosen


class Exposition:
    """Renders the whole catalogue from one snapshot of the ledger; safe to call from any thread."""

    def __init__(
        self,
        ledger: Ledger,
        stats: Stats,
        clock: Callable[[], int],
        budgets: Budgets = NO_BUDGETS,
        *,
        process: bool = True,
        created: bool = False,
    ) -> None:
        """`clock` returns milliseconds since the epoch.

        Without `process` the metrics of the process itself are left out: they say nothing of one
        that ends at once, and would collide in the file of another exporter. `created` adds the
        start timestamps of counters to OpenMetrics.
        """
        self._process = process
        self._created = created
        self._ledger = ledger
        self._stats = stats
        self._clock = clock
        self._budgets = budgets

    def view(self, audience: Audience | None = None) -> View:
        """Return what there is to show now; an audience is shown 0 for what is held from it."""
        now = self._clock()
        snapshot = self._ledger.snapshot()
        spending = self._ledger.spending(self._budgets.calendar.spans(now))
        held = snapshot.held[audience] if audience else frozenset[SeriesName]()
        return View(snapshot, spending, self._budgets, self._stats, self._ledger, now, held)

    def render(self, content_type: str = TEXT, view: View | None = None) -> bytes:
        """Return the exposition in the format of one of the two content types."""
        openmetrics = content_type == OPENMETRICS
        starts = self._ledger.starts() if openmetrics and self._created else None
        lines: list[str] = []
        view = view or self.view()
        for metric in CATALOG:
            lines += _family(metric, view, openmetrics, starts)
        if self._process:
            lines += _process(openmetrics)
        if openmetrics:
            lines.append("# EOF")
        return "\n".join([*lines, ""]).encode()


def _quality(text: str) -> float:
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    return quality if 0 <= quality <= 1 else 0.0


def _family(
    metric: Metric, view: View, openmetrics: bool, starts: Mapping[SeriesName, int] | None
) -> Iterator[str]:
    yield from _head(metric.name, metric.type, metric.help, openmetrics)
    name = metric.name + ("_total" if metric.type is Type.COUNTER else "")
    for values, value in rows(metric, view):
        labels = _labels(metric.labels, values)
        suffix = in_braces(labels)
        if isinstance(value, Buckets):
            yield from _histogram(name, labels, suffix, value)
        else:
            yield f"{name}{suffix} {_number(value)}"
        if starts is not None and metric.type is not Type.GAUGE:
            start = view.stats.started
            if metric.family:
                start = (starts[metric.series(values)] - START_BEFORE_MS) / 1000
            yield f"{metric.name}_created{suffix} {_number(start)}"


def _head(name: str, kind: str, text: str, openmetrics: bool) -> Iterator[str]:
    if kind == Type.COUNTER and not openmetrics:
        name += "_total"
    yield f"# HELP {name} {escaped(text) if openmetrics else text}"
    yield f"# TYPE {name} {kind}"


def _histogram(name: str, labels: str, suffix: str, value: Buckets) -> Iterator[str]:
    before = f"{labels}," if labels else ""
    for edge, count in zip_longest(value.edges, value.counts, fillvalue=math.inf):
        yield f'{name}_bucket{{{before}le="{_number(edge)}"}} {_number(count)}'
    yield f"{name}_sum{suffix} {_number(value.sum)}"
    yield f"{name}_count{suffix} {_number(value.counts[-1])}"


def _process(openmetrics: bool) -> Iterator[str]:
    """Yield the usual process metrics without the process start time."""
    from prometheus_client import ProcessCollector

    for family in ProcessCollector(registry=None).collect():
        if family.name == _HIDDEN:
            continue
        yield from _head(family.name, family.type, family.documentation, openmetrics)
        for sample in family.samples:
            yield f"{sample.name} {_number(sample.value)}"


@lru_cache(maxsize=32_768)
def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """Return the label part of a series; most of a scrape is the same as the one before."""
    pairs = dict(zip(names, values, strict=True))
    if "project" in pairs:
        pairs["project"], pairs["owner"] = label_and_owner(pairs["project"])
    return label_part(pairs)


def _number(value: float) -> str:
    if value == math.inf:
        return "+Inf"
    return str(value) if isinstance(value, int) else repr(float(value))
