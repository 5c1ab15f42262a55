"""The list of all metrics, and their series in a fixed order."""

from __future__ import annotations

from typing import Final

from .budget import BUDGET
from .metric import Buckets, Metric, Value, View
from .own import OWN
from .usage import USAGE

CATALOG: Final = USAGE + BUDGET + OWN


def rows(metric: Metric, view: View) -> list[tuple[tuple[str, ...], Value]]:
    """Return the series of a metric, sorted by label values; what is held has the value 0."""
    found = sorted(metric.read(view), key=lambda row: row[0])
    if not (metric.family and view.held):
        return found
    return [
        (values, _zero(value) if metric.series(values) in view.held else value)
        for values, value in found
    ]


def _zero(value: Value) -> Value:
    if isinstance(value, Buckets):
        return Buckets(value.edges, (0,) * len(value.counts), 0)
    return type(value)(0)
