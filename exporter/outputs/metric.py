"""What a metric is: name, type, help, labels, and how its series are read."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from ..ledger.budgets import Budgets
from ..ledger.stats import Stats
from ..ledger.store import Ledger
from ..ledger.totals import SeriesName, Snapshot, Spending


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
    """What the metrics are read from; `now` is in milliseconds since the epoch.

    Series in `held` are shown as 0.
    """

    snapshot: Snapshot
    spending: Spending
    budgets: Budgets
    stats: Stats
    ledger: Ledger
    now: int
    held: Container[SeriesName] = frozenset()


Value = float | Buckets
Rows = Iterable[tuple[tuple[str, ...], Value]]


class Metric(NamedTuple):
    """One metric: its name carries no `_total`; `read` gives label values and value of each series.

    An empty label value means that the series does not have the label. `family` is the one of the
    ledger's series that this metric's series are born with; empty if they have no birth.
    """

    name: str
    type: Type
    help: str
    labels: tuple[str, ...]
    read: Callable[[View], Rows]
    family: str = ""

    def series(self, values: Sequence[str]) -> SeriesName:
        """Return the ledger's name of the series with these label values."""
        by_name = dict(zip(self.labels, values, strict=True))
        project, model, tool = (by_name.get(name, "") for name in ("project", "model", "tool"))
        return self.family, project, model, tool


def by_value(read: Callable[[View], Mapping[str, float]]) -> Callable[[View], Rows]:
    """Return a reader for a metric with one label, from a mapping of label value to number."""

    def rows(view: View) -> Rows:
        for value, count in list(read(view).items()):
            yield (value,), count

    return rows
