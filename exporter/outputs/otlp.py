"""OTLP: the catalogue as the data points of one request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricsData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from .. import __version__
from ..ledger.labels import label_and_owner
from ..ledger.series import START_BEFORE_MS
from ..ledger.totals import SeriesName
from .catalog import rows
from .metric import Buckets, Type, Value, View
from .otlp_names import Attributed

_SERVICE: Final = "gemini-cli-exporter"
_MOST: Final = 2**63 - 1
_NANOS: Final = 1_000_000
"""Nanoseconds in the milliseconds that times are kept in."""


class Point(NamedTuple):
    """The value of a series, by the values of its labels; times are in milliseconds."""

    values: tuple[str, ...]
    value: Value
    start: int
    time: int


def resource(ledger_id: str) -> Resource:
    """Return what is said of the sender, with what OTEL_RESOURCE_ATTRIBUTES adds.

    The service is named here: an ambient OTEL_SERVICE_NAME is that of Gemini CLI's own telemetry.
    """
    own = {
        "service.name": _SERVICE,
        "service.instance.id": ledger_id,
        "service.version": __version__,
    }
    return Resource.create(own)


def points(metric: Attributed, view: View, starts: Mapping[SeriesName, int]) -> Iterator[Point]:
    """Yield the series of a metric; `starts` are the times of their first turns."""
    started = round(1000 * view.stats.started)
    for values, value in rows(metric.metric, view):
        start = started
        if metric.metric.family:
            start = starts[metric.metric.series(values)] - START_BEFORE_MS
        yield Point(values, value, start, view.now)


def request(
    sender: Resource,
    families: Iterable[tuple[Attributed, Iterable[Point]]],
    temporality: AggregationTemporality,
) -> MetricsData:
    """Return what is sent: the metrics that have points."""
    metrics = []
    for metric, found in families:
        data = _data(metric, found, temporality)
        if data.data_points:
            metrics.append(sdk.Metric(metric.name, metric.metric.help, metric.unit, data))
    scope = sdk.ScopeMetrics(InstrumentationScope(_SERVICE, __version__), metrics, "")
    return MetricsData([sdk.ResourceMetrics(sender, [scope], sender.schema_url)])


def count(data: MetricsData) -> int:
    """Return how many data points a request has."""
    scopes = (scope for part in data.resource_metrics for scope in part.scope_metrics)
    return sum(len(metric.data.data_points) for scope in scopes for metric in scope.metrics)


def _data(
    metric: Attributed, found: Iterable[Point], temporality: AggregationTemporality
) -> sdk.Sum | sdk.Gauge | sdk.Histogram:
    if metric.metric.type is Type.HISTOGRAM:
        return sdk.Histogram([_histogram(metric, point) for point in found], temporality)
    numbers = [_number(metric, point) for point in found]
    if metric.metric.type is Type.GAUGE:
        return sdk.Gauge(numbers)
    return sdk.Sum(numbers, temporality, is_monotonic=True)


def _number(metric: Attributed, point: Point) -> sdk.NumberDataPoint:
    value = point.value
    assert not isinstance(value, Buckets)
    return sdk.NumberDataPoint(
        _attributes(metric, point.values),
        point.start * _NANOS,
        point.time * _NANOS,
        min(value, _MOST) if isinstance(value, int) else value,
    )


def _histogram(metric: Attributed, point: Point) -> sdk.HistogramDataPoint:
    value = point.value
    assert isinstance(value, Buckets)
    counts = [high - low for low, high in zip((0, *value.counts), value.counts, strict=False)]
    return sdk.HistogramDataPoint(
        _attributes(metric, point.values),
        point.start * _NANOS,
        point.time * _NANOS,
        value.counts[-1],
        value.sum,
        counts,
        value.edges,
        # What was the least and the most is not kept; None is left out of the request.
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
    )


def _attributes(metric: Attributed, values: tuple[str, ...]) -> dict[str, str]:
    found = {**metric.constant, **dict(zip(metric.keys, values, strict=True))}
    if "project" in found:
        found["project"], owner = label_and_owner(found["project"])
        if owner:
            found["owner"] = owner
    return {key: value for key, value in found.items() if value}
