"""The list of all metrics, and their series in a fixed order."""

from __future__ import annotations

from typing import Final

from .metric import Metric, Value, View
from .own import OWN
from .usage import USAGE

CATALOG: Final = USAGE + OWN


def rows(metric: Metric, view: View) -> list[tuple[tuple[str, ...], Value]]:
    """Return the series of a metric, sorted by label values."""
    return sorted(metric.read(view), key=lambda row: row[0])
