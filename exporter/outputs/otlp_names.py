"""What the metrics are called in OTLP: names and units that become the Prometheus names again.

Receivers turn dots into underscores, add a unit that is more than a word in braces, and `_total` to
counters: https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from .metric import Metric

_PREFIXES: Final = {"gemini_cli_exporter_": "gemini_cli.exporter.", "gemini_cli_": "gemini_cli."}
_UNITS: Final = {"_seconds": ("", "s"), "_bytes": ("", "By"), "_usd": (".usd", "{USD}")}
"""By the end of a Prometheus name: what remains of it, and the unit."""
_COUNTED: Final = frozenset(
    {"calls", "cancellations", "errors", "exports", "failures", "files", "restarts", "scans"}
    | {"sessions", "tokens", "turns"}
)
"""Last words of names that say what is counted."""


class Attributed(NamedTuple):
    """A metric as OTLP has it: its name and unit, and the attributes that are its labels.

    `constant` are attributes that every series has beside its labels.
    """

    metric: Metric
    name: str
    unit: str
    keys: tuple[str, ...]
    constant: Mapping[str, str] = MappingProxyType({})


def attributed(metric: Metric) -> Attributed:
    """Return a metric of the catalogue with its name and unit in OTLP."""
    prefix = next(prefix for prefix in _PREFIXES if metric.name.startswith(prefix))
    rest, unit = metric.name.removeprefix(prefix), ""
    for end, (kept, of_end) in _UNITS.items():
        if rest.endswith(end):
            rest, unit = rest.removesuffix(end) + kept, of_end
    last = rest.rpartition("_")[2]
    if last in _COUNTED and "_per_" not in rest:
        unit = f"{{{last.removesuffix('s')}}}"
    return Attributed(metric, _PREFIXES[prefix] + rest, unit, metric.labels)
