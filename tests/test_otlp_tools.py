"""The receivers that the tests of OTLP rest on do what they say, and can fail."""

from __future__ import annotations

import http.client
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (
    OTLPMetricExporter as GrpcExporter,
)
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
    OTLPMetricExporter as HttpExporter,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from tests import otlp_points
from tests.otlp_answers import (
    CLOSE,
    GARBAGE,
    HANG,
    OK,
    PORTAL,
    Answer,
    fail,
    refuse,
    reject,
    trickle,
)
from tests.otlp_points import Point
from tests.otlp_sink import PATH, GrpcSink, Inbox, Sink
from tests.rotel import Rotel, needs_rotel

START: Final = 1_796_072_400_000_000_001
"""Nanoseconds: a float would round them."""
TIME: Final = START + 60_000_000_000
MOST: Final = 2**63 - 1
RESOURCE: Final = {
    "service.name": "gemini-cli-exporter",
    "service.instance.id": "one",
    "ports": (1, 2),
}
ATTRIBUTES: Final = {"project": "größer/\N{CAT FACE}", "model": "gemini-2.5-pro", "kind": "input"}
SUCCESS: Final = MetricExportResult.SUCCESS
FAILURE: Final = MetricExportResult.FAILURE
UNAVAILABLE: Final = grpc.StatusCode.UNAVAILABLE


def number(value: int | float, **more: str) -> NumberDataPoint:
    return NumberDataPoint({**ATTRIBUTES, **more}, START, TIME, value)


def metrics(*points: NumberDataPoint) -> MetricsData:
    """Return cumulative sums alone, or one metric of each kind if there are no points."""
    cumulative, delta = AggregationTemporality.CUMULATIVE, AggregationTemporality.DELTA
    histogram = HistogramDataPoint(ATTRIBUTES, START, TIME, 3, 70, (1, 0, 2), (10.0, 50.0), 0, 60)
    every = [
        Metric("turns", "Turns.", "{turn}", Sum([number(MOST)], cumulative, True)),
        Metric("cost", "Cost.", "{USD}", Sum([number(0.1)], delta, False)),
        Metric("budget", "Budget.", "{USD}", Gauge([number(2.5)])),
        Metric("prompt", "Prompt.", "{token}", Histogram([histogram], cumulative)),
    ]
    sums = [Metric("turns", "Turns.", "{turn}", Sum(list(points), cumulative, True))]
    scope = ScopeMetrics(InstrumentationScope("usage"), sums if points else every, "")
    return MetricsData([ResourceMetrics(Resource(RESOURCE), [scope], "")])


def arriving() -> list[Point]:
    """Return the points of one metric of each kind as they ought to arrive."""

    def point(name: str, unit: str, kind: otlp_points.Kind, **more: Any) -> Point:
        return Point(
            name=name,
            description=f"{name.title()}.",
            unit=unit,
            kind=kind,
            resource=RESOURCE,
            scope="usage",
            attributes=tuple(sorted(ATTRIBUTES.items())),
            # The exporters leave out when a gauge began.
            start=0 if kind == "gauge" else START,
            time=TIME,
            **more,
        )

    buckets = otlp_points.Histogram(3, 70.0, (10.0, 50.0), (1, 0, 2))
    return [
        point("turns", "{turn}", "sum", monotonic=True, temporality="cumulative", value=MOST),
        point("cost", "{USD}", "sum", monotonic=False, temporality="delta", value=0.1),
        point("budget", "{USD}", "gauge", monotonic=False, temporality="unspecified", value=2.5),
        point(
            "prompt",
            "{token}",
            "histogram",
            monotonic=False,
            temporality="cumulative",
            value=buckets,
        ),
    ]


class Wires:
    """Exporters, shut down at the end."""

    def __init__(self) -> None:
        self._ends = ExitStack()

    def http(self, url: str, timeout: float = 10, **options: Any) -> MetricExporter:
        return self._keep(HttpExporter(url + PATH, timeout=timeout, **options))

    def grpc(self, address: str, timeout: float = 10, **options: Any) -> MetricExporter:
        return self._keep(GrpcExporter(address, insecure=True, timeout=timeout, **options))

    def to(self, inbox: Inbox, timeout: float = 10) -> MetricExporter:
        if isinstance(inbox, GrpcSink):
            return self.grpc(inbox.address, timeout)
        return self.http(inbox.url, timeout)

    def _keep(self, exporter: MetricExporter) -> MetricExporter:
        self._ends.callback(exporter.shutdown)
        return exporter

    def close(self) -> None:
        self._ends.close()


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy of the surroundings comes between, and what exporters complain of is meant."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(logging.getLogger("opentelemetry.exporter"), "disabled", True)


@pytest.fixture
def wires() -> Iterator[Wires]:
    wires = Wires()
    yield wires
    wires.close()


@pytest.fixture
def sink() -> Iterator[Sink]:
    with Sink() as sink:
        yield sink


@pytest.fixture
def grpc_sink() -> Iterator[GrpcSink]:
    with GrpcSink() as sink:
        yield sink


@pytest.fixture(params=[Sink, GrpcSink], ids=["http", "grpc"])
def inbox(request: pytest.FixtureRequest) -> Iterator[Inbox]:
    with request.param() as inbox:
        yield inbox


def test_a_point_of_each_kind_arrives_unchanged(inbox: Inbox, wires: Wires) -> None:
    assert wires.to(inbox).export(metrics()) is SUCCESS
    assert inbox.points == arriving()


@needs_rotel
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_point_of_each_kind_goes_unchanged_through_a_real_collector(
    sink: Sink, wires: Wires, tmp_path: Path, protocol: str
) -> None:
    with Rotel(tmp_path, sink) as rotel:
        over_http = protocol == "http"
        exporter = wires.http(rotel.url) if over_http else wires.grpc(rotel.grpc_address)
        assert exporter.export(metrics()) is SUCCESS
        assert sink.wait(4) == arriving()
        assert exporter.export(metrics(number(1))) is SUCCESS
        assert sink.wait(5)[-1].value == 1


@needs_rotel
def test_a_real_collector_sends_again_what_the_sink_does_not_take(
    sink: Sink, wires: Wires, tmp_path: Path
) -> None:
    sink.answer(refuse(503), OK)
    with Rotel(tmp_path, sink) as rotel:
        assert wires.http(rotel.url).export(metrics()) is SUCCESS
        assert sink.wait(4) == arriving()
    assert len(sink.requests) == 2


@pytest.mark.parametrize("compression", Compression)
def test_the_size_and_the_encoding_of_a_request_are_those_on_the_wire(
    sink: Sink, wires: Wires, compression: Compression
) -> None:
    points = [number(value, session=str(value)) for value in range(100)]
    exporter = wires.http(sink.url, compression=compression, headers={"X-Scope": "me"})
    assert exporter.export(metrics(*points)) is SUCCESS
    [request] = sink.requests
    assert [point.value for point in request.points] == list(range(100))
    assert request.encoding == compression.value.replace("none", "")
    assert request.headers["content-length"] == str(request.size)
    assert request.headers["x-scope"] == "me"
    assert (request.size > 5_000) == (compression is Compression.NoCompression)


def test_grpc_decompresses_and_tells_the_metadata(grpc_sink: GrpcSink, wires: Wires) -> None:
    exporter = wires.grpc(
        grpc_sink.address, compression=grpc.Compression.Gzip, headers={"x-scope": "me"}
    )
    assert exporter.export(metrics()) is SUCCESS
    [request] = grpc_sink.requests
    assert request.points == tuple(arriving())
    assert request.headers["x-scope"] == "me"


def test_the_latest_point_of_each_series_is_the_last_that_came(inbox: Inbox, wires: Wires) -> None:
    exporter = wires.to(inbox)
    for points in [number(1), number(2, kind="output")], [number(3)]:
        exporter.export(metrics(*points))
    found = {point.attributes[0][1]: point.value for point in inbox.latest().values()}
    assert found == {"input": 3, "output": 2}
    assert {(instance, name) for instance, name, _ in inbox.latest()} == {("one", "turns")}


def test_waiting_for_what_does_not_come_fails_and_tells_what_came(sink: Sink, wires: Wires) -> None:
    wires.http(sink.url).export(metrics(number(41)))
    assert sink.wait(lambda points: points[-1].value == 41)
    with pytest.raises(AssertionError, match="value=41"):
        sink.wait(2, timeout=0.01)
    with pytest.raises(AssertionError, match="not in"):
        sink.wait_for_requests(2, timeout=0.01)


@pytest.mark.parametrize("status", [400, 401, 404, 413, 429, 500, 503])
def test_what_is_refused_over_http_arrives_and_is_not_kept(
    sink: Sink, wires: Wires, status: int
) -> None:
    sink.answer(refuse(status, retry_after="60"))
    assert wires.http(sink.url).export(metrics()) is FAILURE
    assert [request.points for request in sink.requests] == [tuple(arriving())]
    assert sink.points == []


@pytest.mark.parametrize("code", ["UNAVAILABLE", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"])
def test_what_is_refused_over_grpc_arrives_and_is_not_kept(
    grpc_sink: GrpcSink, wires: Wires, code: str
) -> None:
    grpc_sink.answer(fail(grpc.StatusCode[code]))
    assert wires.grpc(grpc_sink.address, 0.5).export(metrics()) is FAILURE
    assert [request.points for request in grpc_sink.requests] == [tuple(arriving())]
    assert grpc_sink.points == []


def test_answers_come_one_after_the_other_and_the_last_one_stays(sink: Sink, wires: Wires) -> None:
    sink.answer(refuse(400), OK, refuse(401))
    exporter = wires.http(sink.url)
    results = [exporter.export(metrics(number(value))) for value in range(4)]
    assert results == [FAILURE, SUCCESS, FAILURE, FAILURE]
    assert [point.value for point in sink.points] == [1]


def test_what_hangs_is_kept_when_it_is_released(inbox: Inbox, wires: Wires) -> None:
    inbox.answer(HANG, OK)
    assert wires.to(inbox, 0.3).export(metrics(number(1))) is FAILURE
    assert wires.to(inbox).export(metrics(number(2))) is SUCCESS
    assert [point.value for point in inbox.points] == [2]
    inbox.release()
    assert [point.value for point in inbox.wait(2)] == [2, 1]


def test_what_hangs_is_not_kept_when_the_sink_stops(wires: Wires) -> None:
    for inbox in Sink(), GrpcSink():
        with inbox:
            inbox.answer(HANG)
            assert wires.to(inbox, 0.3).export(metrics()) is FAILURE
        assert len(inbox.requests) == 1
        assert inbox.points == []


def test_a_stopped_sink_is_dead_and_lives_again_at_its_address(inbox: Inbox, wires: Wires) -> None:
    exporter = wires.to(inbox, 0.5)
    assert exporter.export(metrics(number(1))) is SUCCESS
    address = inbox.address
    inbox.stop()
    assert exporter.export(metrics(number(2))) is FAILURE
    inbox.start()
    assert inbox.address == address
    assert wires.to(inbox).export(metrics(number(3))) is SUCCESS
    assert [point.value for point in inbox.points] == [1, 3]


def test_a_connection_is_closed_without_an_answer(sink: Sink) -> None:
    sink.answer(CLOSE)
    with pytest.raises(http.client.RemoteDisconnected):
        posted(sink)
    sink.answer(Answer(closes=True))
    with pytest.raises(http.client.RemoteDisconnected):
        posted(sink)
    assert len(sink.requests) == 2


@pytest.mark.parametrize("answer", [GARBAGE, PORTAL], ids=["garbage", "portal"])
def test_a_lie_has_the_status_of_a_success_and_keeps_nothing(
    sink: Sink, wires: Wires, answer: Answer
) -> None:
    sink.answer(answer)
    status, _, body = posted(sink)
    assert (status, body) == (200, answer.body)
    wires.http(sink.url).export(metrics())
    assert sink.points == []


@pytest.mark.parametrize(
    ("answer", "content_type"),
    [
        (OK, "application/x-protobuf"),
        (PORTAL, "text/html"),
        (refuse(502, content_type="text/plain"), "text/plain"),
    ],
    ids=["ok", "portal", "refuse"],
)
def test_an_answer_has_one_content_type(sink: Sink, answer: Answer, content_type: str) -> None:
    sink.answer(answer)
    assert posted(sink)[1].get_all("Content-Type") == [content_type]


def test_a_partial_success_keeps_all_but_the_last_points(inbox: Inbox, wires: Wires) -> None:
    inbox.answer(reject(3, "too old"), reject(4), reject(0, "deprecated"))
    exporter = wires.to(inbox)
    for _ in range(3):
        exporter.export(metrics())
    assert inbox.points == arriving()[:1] + arriving()


def test_a_partial_success_tells_how_many_and_why(sink: Sink) -> None:
    sink.answer(reject(3, "too old"))
    partial = ExportMetricsServiceResponse.FromString(posted(sink)[2]).partial_success
    assert (partial.rejected_data_points, partial.error_message) == (3, "too old")


@pytest.mark.parametrize(
    "answer", [trickle(20, 0.01), Answer(head_pause=0.005)], ids=["body", "head"]
)
def test_a_slow_answer_is_whole_in_the_end(sink: Sink, answer: Answer) -> None:
    sink.answer(answer)
    began = time.monotonic()
    assert posted(sink)[::2] == (200, answer.body)
    assert time.monotonic() - began > 0.2


def test_a_slow_answer_over_grpc_comes_after_its_pause(grpc_sink: GrpcSink, wires: Wires) -> None:
    grpc_sink.answer(Answer(pause=0.4))
    assert wires.grpc(grpc_sink.address, 0.2).export(metrics()) is FAILURE
    assert wires.grpc(grpc_sink.address).export(metrics()) is SUCCESS


def test_a_sink_stops_in_the_midst_of_a_slow_answer() -> None:
    with Sink() as sink:
        sink.answer(trickle(10, 1_000))
        connection = asked(sink)
        sink.wait_for_requests()
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        connection.getresponse().read()
    connection.close()


def test_a_huge_answer_is_whole(sink: Sink) -> None:
    sink.answer(Answer(body=bytes(8 << 20)))
    assert len(posted(sink)[2]) == 8 << 20


def test_a_redirect_leads_to_another_sink(sink: Sink) -> None:
    with Sink() as other:
        sink.answer(refuse(307, location=other.url + PATH))
        status, headers, _ = posted(sink)
        assert (status, headers["Location"]) == (307, other.url + PATH)
        assert other.requests == []


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"method": "GET", "body": None}, 405),
        ({"url": "/v1/traces"}, 404),
        ({"body": b"\xff"}, 400),
        ({"body": b"no gzip", "headers": {"Content-Encoding": "gzip"}}, 400),
        ({"headers": {"Content-Encoding": "br"}}, 415),
        ({"headers": {"Content-Type": "application/json"}}, 415),
    ],
    ids=["method", "path", "body", "gzip", "encoding", "type"],
)
def test_what_is_no_request_of_otlp_is_refused_and_noted(
    sink: Sink, change: dict[str, Any], status: int
) -> None:
    assert posted(sink, **change)[0] == status
    [request] = sink.requests
    assert request.path == change.get("url", PATH)
    assert request.points == ()


def test_what_is_no_request_of_otlp_is_refused_over_grpc(grpc_sink: GrpcSink) -> None:
    with grpc.insecure_channel(grpc_sink.address) as channel:
        export: grpc.UnaryUnaryMultiCallable[bytes, bytes]
        export = channel.unary_unary(
            "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
        )
        with pytest.raises(grpc.RpcError) as caught:
            export(b"\xff", timeout=10)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert [request.points for request in grpc_sink.requests] == [()]


def asked(
    sink: Sink,
    method: str = "POST",
    url: str = PATH,
    body: bytes | None = b"",
    headers: dict[str, str] | None = None,
) -> http.client.HTTPConnection:
    """Return a connection on which a request was sent, an empty one of OTLP if not told else."""
    connection = http.client.HTTPConnection(sink.address, timeout=10)
    sent = {"Content-Type": "application/x-protobuf", **(headers or {})}
    connection.request(method, url, body, sent)
    return connection


def posted(sink: Sink, **request: Any) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Return status, headers and body of the answer to such a request."""
    connection = asked(sink, **request)
    try:
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()
