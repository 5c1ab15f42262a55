"""Data points of OTLP as plain values, to be compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal, TypeAlias

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
)

Kind: TypeAlias = Literal["sum", "gauge", "histogram"]
Attributes: TypeAlias = tuple[tuple[str, Any], ...]
"""Names and values, sorted by name."""
Series: TypeAlias = tuple[str, str, Attributes]
"""The id of the instance, the metric, and the attributes."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """The value of a histogram's point; the last bucket has no upper bound."""

    count: int
    sum: float
    bounds: tuple[float, ...]
    buckets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """One data point, with what its metric, scope and resource say; times in nanoseconds."""

    name: str
    description: str
    unit: str
    kind: Kind
    monotonic: bool
    temporality: str
    """`delta` or `cumulative`; `unspecified` for a gauge and for one who does not say."""
    resource: Mapping[str, Any]
    scope: str
    attributes: Attributes
    start: int
    time: int
    value: int | float | Histogram

    @property
    def series(self) -> Series:
        """What the point is a value of."""
        return str(self.resource.get("service.instance.id", "")), self.name, self.attributes


def decoded(body: bytes) -> Iterator[Point]:
    """Yield the points of a request (ExportMetricsServiceRequest, serialized) in its order.

    Raises DecodeError if it is none, or has a kind of metric that nobody here is expected to send.
    """
    for of_resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
        resource = dict(_attributes(of_resource.resource.attributes))
        for of_scope in of_resource.scope_metrics:
            for metric in of_scope.metrics:
                yield from _points(metric, resource, of_scope.scope.name)


def _points(metric: Metric, resource: Mapping[str, Any], scope: str) -> Iterator[Point]:
    kind = metric.WhichOneof("data")
    if kind not in ("sum", "gauge", "histogram"):
        raise DecodeError(f"{metric.name} is a {kind}")
    data = getattr(metric, kind)
    unspecified = AggregationTemporality.AGGREGATION_TEMPORALITY_UNSPECIFIED
    temporality = unspecified if kind == "gauge" else data.aggregation_temporality
    for point in data.data_points:
        yield Point(
            name=metric.name,
            description=metric.description,
            unit=metric.unit,
            kind=kind,
            monotonic=getattr(data, "is_monotonic", False),
            temporality=AggregationTemporality.Name(temporality).rpartition("_")[2].lower(),
            resource=resource,
            scope=scope,
            attributes=_attributes(point.attributes),
            start=point.start_time_unix_nano,
            time=point.time_unix_nano,
            value=_value(point),
        )


def _value(point: NumberDataPoint | HistogramDataPoint) -> int | float | Histogram:
    if isinstance(point, HistogramDataPoint):
        bounds, buckets = tuple(point.explicit_bounds), tuple(point.bucket_counts)
        return Histogram(point.count, point.sum, bounds, buckets)
    return point.as_int if point.WhichOneof("value") == "as_int" else point.as_double


def _attributes(pairs: Iterable[KeyValue]) -> Attributes:
    return tuple(sorted(((pair.key, _any(pair.value)) for pair in pairs), key=itemgetter(0)))


def _any(value: AnyValue) -> Any:
    match value.WhichOneof("value"):
        case None:
            return None
        case "array_value":
            return tuple(map(_any, value.array_value.values))
        case "kvlist_value":
            return _attributes(value.kvlist_value.values)
        case kind:
            return getattr(value, kind)
