"""Differences: what each series grew by since the last request that was confirmed."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from concurrent.futures import Future
from operator import lt, sub

import msgspec

from ..ledger.pushed import Confirmed, Pending, Pushed, Totals
from ..ledger.totals import SeriesName
from .catalog import rows
from .metric import Buckets, Type, Value, View
from .otlp import Point
from .otlp_names import Attributed
from .sender import Outcome


class Deltas:
    """Works out one request after the other; one that may have arrived is made again unchanged.

    A series that is new is history, and nothing to be told, unless the receiver was looking on when
    it was born. What the exporter counts of itself begins at 0 with each start.
    """

    def __init__(self, pushed: Pushed, metrics: Iterable[Attributed]) -> None:
        self.held: Container[SeriesName] = frozenset()
        """What is told for the first time by the request that was decided on last."""
        self.doubtful = pushed.pending is not None
        """Whether the pending request may have arrived."""
        self._pushed = pushed
        self._stored: Future[None] = Future()
        self._stored.set_result(None)
        self._metrics = {metric.name: metric for metric in metrics if not is_gauge(metric)}
        for series in list(pushed.confirmed):
            metric = self._metrics.get(_parsed(series)[0])
            if metric is None or not metric.metric.family:
                del pushed.confirmed[series]

    def stage(self, view: View) -> Future[None]:
        """Decide on the next request, unless one is pending; it may be made once it is stored."""
        pushed = self._pushed
        if pushed.pending is not None:
            return self._stored
        known: Confirmed = {}
        before: Confirmed = {}
        after: Confirmed = {}
        for series, totals, counts_from_zero in self._totals(view):
            last = pushed.confirmed.get(series)
            if last is None:
                last = known[series] = (0,) * len(totals) if counts_from_zero else totals
            if len(last) != len(totals) or any(map(lt, totals, last)):
                # Other buckets after an upgrade, or an older ledger in the place of a damaged one.
                known[series] = totals
            elif totals != last:
                before[series], after[series] = last, totals
        started = round(1000 * view.stats.started)
        since = min(started if pushed.since is None else pushed.since, view.now)
        self.held = view.held
        self._stored = pushed.stage(Pending(since, view.now, before, after), known)
        return self._stored

    def points(self, view: View) -> dict[str, list[Point]]:
        """Return what the pending request says, by the name of the metric."""
        pending = self._pushed.pending
        assert pending is not None
        found: dict[str, list[Point]] = {}
        for series, totals in pending.after.items():
            name, values = _parsed(series)
            metric = self._metrics.get(name)
            if metric is not None:
                grown = tuple(map(sub, totals, pending.before[series]))
                point = Point(values, _value(metric, view, grown), pending.since, pending.time)
                found.setdefault(name, []).append(point)
        return found

    def settle(self, outcome: Outcome) -> bool:
        """Note what became of the pending request; return whether it is not pending any more.

        One that is refused is part of the next, unless it may have arrived before: then that is
        believed, since it would be counted twice.
        """
        if outcome is Outcome.DELIVERED or (outcome is Outcome.REFUSED and self.doubtful):
            self._pushed.confirm()
        elif outcome is Outcome.REFUSED:
            self._pushed.refuse()
        else:
            self.doubtful |= outcome is Outcome.UNKNOWN
            return False
        self.doubtful = False
        return True

    def _totals(self, view: View) -> Iterator[tuple[str, Totals, bool]]:
        """Yield each series' name, its totals, and whether its first value is an increase."""
        for metric in self._metrics.values():
            for values, value in rows(metric.metric, view._replace(held=frozenset())):
                series = msgspec.json.encode((metric.name, *values)).decode()
                born = not metric.metric.family or metric.metric.series(values) in view.held
                yield series, _numbers(value), born


def is_gauge(metric: Attributed) -> bool:
    """Tell whether a metric has no differences."""
    return metric.metric.type is Type.GAUGE


def _parsed(series: str) -> tuple[str, tuple[str, ...]]:
    name, *values = msgspec.json.decode(series, type=list[str])
    return name, tuple(values)


def _numbers(value: Value) -> Totals:
    return (*value.counts, value.sum) if isinstance(value, Buckets) else (value,)


def _value(metric: Attributed, view: View, numbers: Totals) -> Value:
    if metric.metric.type is Type.HISTOGRAM:
        *counts, total = numbers
        return Buckets(_edges(metric, view), tuple(map(int, counts)), total)
    return numbers[0]


def _edges(metric: Attributed, view: View) -> tuple[float, ...]:
    """Return the edges that all series of a histogram have."""
    return next(value.edges for _, value in metric.metric.read(view) if isinstance(value, Buckets))
