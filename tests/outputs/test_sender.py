"""Sending: whatever a receiver answers is judged rightly, in time, and told without secrets."""

from __future__ import annotations

import gzip
import json
import logging
import re
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeAlias

import grpc
import pytest
import trustme
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from exporter.outputs import sender as module
from exporter.outputs.receiver import Compression, Protocol, Receiver, Temporality
from exporter.outputs.sender import Outcome, Sender
from tests.daemon import free_address
from tests.otlp_answers import CLOSE, GARBAGE, HANG, OK, PORTAL, Answer, fail, refuse, reject
from tests.otlp_sink import PATH, GrpcSink, Inbox, Sink

Code: Final = grpc.StatusCode
DELIVERED, REFUSED, UNREACHED, UNKNOWN = (
    Outcome.DELIVERED,
    Outcome.REFUSED,
    Outcome.UNREACHED,
    Outcome.UNKNOWN,
)
POINTS: Final = 4
TIMEOUT: Final = 0.5
SECRET: Final = "s3cret-of-ana"
BOMB: Final = gzip.compress(bytes(32 << 20))
"""Less than what is looked at of an answer, but not when it is unpacked."""

To: TypeAlias = Callable[..., Sender]


def metrics(points: int = POINTS) -> MetricsData:
    """Return a request with so many points."""
    numbers = [NumberDataPoint({"n": n}, 1, 2, n) for n in range(points)]
    data = Sum(numbers, AggregationTemporality.CUMULATIVE, True)
    scope = ScopeMetrics(InstrumentationScope("s"), [Metric("turns", "Turns.", "1", data)], "")
    return MetricsData([ResourceMetrics(Resource({"service.name": "x"}), [scope], "")])


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization=Bearer%20{SECRET},x-team=red")


@pytest.fixture
def to(request: pytest.FixtureRequest) -> To:
    """Makes senders to an inbox or a URL, closed at the end."""

    def make(place: Inbox | str, timeout: float = TIMEOUT, **changes: Any) -> Sender:
        over_http = isinstance(place, Sink)
        url = place if isinstance(place, str) else place.url + PATH * over_http
        protocol = Protocol.HTTP if url.endswith(PATH) else Protocol.GRPC
        receiver = Receiver(
            url, protocol, timeout, 60, Compression.NONE, Temporality.CUMULATIVE, "", "", ""
        )
        sender = Sender(receiver._replace(**changes))
        request.addfinalizer(sender.close)
        return sender

    return make


@pytest.fixture
def sink() -> Iterator[Sink]:
    with Sink() as sink:
        yield sink


@pytest.fixture(params=[Sink, GrpcSink], ids=["http", "grpc"])
def inbox(request: pytest.FixtureRequest) -> Iterator[Inbox]:
    with request.param() as inbox:
        yield inbox


def saying(text: str | bytes, kind: str = "application/json", **headers: str) -> Answer:
    body = text.encode() if isinstance(text, str) else text
    return Answer(headers={"Content-Type": kind, **headers}, body=body)


def said_in_json(**partial: object) -> Answer:
    return saying(json.dumps({"partialSuccess": partial}))


WEB_PAGE: Final = "a web page answers, no receiver of OTLP: behind the login of a network?"
NOT_OTLP: Final = "the answer is not one of OTLP"
OLD: Final = "the receiver rejects 1 data points: too old"

OVER_HTTP: Final = {
    "ok": (OK, DELIVERED, ""),
    "204": (Answer(status=204), DELIVERED, ""),
    "text": (saying("ok", "text/plain"), DELIVERED, ""),
    "garbage": (GARBAGE, UNKNOWN, NOT_OTLP),
    "portal": (PORTAL, UNREACHED, WEB_PAGE),
    "PORTAL": (saying("<HTML>", "Text/HTML; charset=utf-8"), UNREACHED, WEB_PAGE),
    **{
        str(status): (refuse(status), outcome, f"HTTP status {status}")
        for status, outcome in {
            301: UNREACHED,
            304: UNREACHED,
            400: REFUSED,
            401: UNREACHED,
            403: UNREACHED,
            404: UNREACHED,
            413: UNREACHED,
            415: UNREACHED,
            429: UNREACHED,
            500: UNKNOWN,
            502: UNKNOWN,
            503: UNKNOWN,
            504: UNKNOWN,
        }.items()
    },
    "429 later": (refuse(429, retry_after="3600"), UNREACHED, "HTTP status 429"),
    "close": (CLOSE, UNKNOWN, "ConnectionError: Remote end closed connection without response"),
    "hang": (HANG, UNKNOWN, "ReadTimeout: timed out"),
    "some rejected": (reject(1, "too old"), DELIVERED, OLD),
    "silently": (reject(2), DELIVERED, "the receiver rejects 2 data points: no reason"),
    "warning": (reject(0, "deprecated"), DELIVERED, ""),
    "negative": (reject(-5, "odd"), DELIVERED, ""),
    "all rejected": (
        reject(POINTS, "no such tenant"),
        REFUSED,
        f"the receiver rejects {POINTS} data points: no such tenant",
    ),
    "json": (saying("{}"), DELIVERED, ""),
    "json of nothing": (saying(""), DELIVERED, ""),
    "json some": (said_in_json(rejectedDataPoints="1", errorMessage="too old"), DELIVERED, OLD),
    "json number": (said_in_json(rejectedDataPoints=1, errorMessage="too old"), DELIVERED, OLD),
    "json all": (
        said_in_json(rejectedDataPoints=str(POINTS)),
        REFUSED,
        f"the receiver rejects {POINTS} data points: no reason",
    ),
    "json warning": (said_in_json(errorMessage="deprecated"), DELIVERED, ""),
    "json null": (saying('{"partialSuccess":null}'), DELIVERED, ""),
    "json list": (saying("[1]"), DELIVERED, ""),
    "json word": (said_in_json(rejectedDataPoints="some"), DELIVERED, ""),
    "json infinite": (saying('{"partialSuccess":{"rejectedDataPoints":1e999}}'), DELIVERED, ""),
    "json deep": (saying("[" * 60_000), DELIVERED, ""),
    "json broken": (saying(b'{"\xff'), DELIVERED, ""),
}


@pytest.mark.parametrize(("answer", "outcome", "fault"), OVER_HTTP.values(), ids=OVER_HTTP)
def test_an_answer_by_http_is_judged(
    answer: Answer,
    outcome: Outcome,
    fault: str,
    sink: Sink,
    to: To,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    sink.answer(answer)
    assert to(sink).send(metrics(), POINTS) == (outcome, fault)
    assert SECRET not in caplog.text
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


OVER_GRPC: Final = {
    "ok": (OK, DELIVERED, ""),
    "garbage": (GARBAGE, UNKNOWN, "gRPC status INTERNAL: Exception deserializing response!"),
    "hang": (HANG, UNKNOWN, "gRPC status DEADLINE_EXCEEDED: Deadline Exceeded"),
    "late": (Answer(pause=2), UNKNOWN, "gRPC status DEADLINE_EXCEEDED: Deadline Exceeded"),
    "some rejected": (reject(1, "too old"), DELIVERED, OLD),
    "warning": (reject(0, "deprecated"), DELIVERED, ""),
    "all rejected": (
        reject(POINTS, "no such tenant"),
        REFUSED,
        f"the receiver rejects {POINTS} data points: no such tenant",
    ),
    **{
        code.name: (
            fail(code),
            REFUSED if code is Code.INVALID_ARGUMENT else UNKNOWN,
            f"gRPC status {code.name}: told to say {code.name}",
        )
        for code in Code
        if code is not Code.OK
    },
}


@pytest.mark.parametrize(("answer", "outcome", "fault"), OVER_GRPC.values(), ids=OVER_GRPC)
def test_an_answer_by_grpc_is_judged(
    answer: Answer, outcome: Outcome, fault: str, to: To, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with GrpcSink() as sink:
        sink.answer(answer)
        assert to(sink).send(metrics(), POINTS) == (outcome, fault)
    assert SECRET not in caplog.text
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


def test_where_nobody_listens_nothing_has_arrived(to: To) -> None:
    sender = to(f"http://{free_address()}{PATH}")
    assert sender.send(metrics(), POINTS) == (UNREACHED, "ConnectionError: Connection refused")


def test_a_host_without_an_address_is_not_reached(to: To) -> None:
    outcome, fault = to(f"http://nobody.invalid{PATH}").send(metrics(), POINTS)
    assert outcome is UNREACHED
    assert fault.startswith("ConnectionError: ")
    assert "object at" not in fault


def test_grpc_does_not_tell_whether_anybody_was_there(to: To) -> None:
    outcome, fault = to(f"http://{free_address()}").send(metrics(), POINTS)
    assert outcome is UNKNOWN
    assert fault.startswith("gRPC status UNAVAILABLE: ")
    assert fault.endswith("Connection refused")


def test_a_new_try_after_a_connection_was_lost_may_deliver(sink: Sink, to: To) -> None:
    sink.answer(Answer(closes=True), OK)
    assert to(sink).send(metrics(), POINTS)[0] is DELIVERED
    assert len(sink.requests) == 2


@pytest.mark.parametrize("status", [429, 503])
def test_a_new_try_after_a_busy_receiver_delivers(sink: Sink, to: To, status: int) -> None:
    sink.answer(refuse(status, retry_after="0"), OK)
    assert to(sink).send(metrics(), POINTS)[0] is DELIVERED


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(sink: Sink, to: To, status: int) -> None:
    """Wherever it leads, the headers were not meant for that."""
    with Sink() as other:
        sink.answer(refuse(status, location=other.url + PATH))
        found = to(sink).send(metrics(), POINTS)
        assert found == (UNREACHED, f"HTTP status {status}")
        assert other.requests == []
        assert len(sink.requests) == 1


# Requests in parts

PARTS: Final = {
    "all": ((OK, OK), (OK, OK), DELIVERED, DELIVERED),
    "the second busy": (
        (OK, refuse(503)),
        (OK, fail(Code.UNAVAILABLE)),
        UNKNOWN,
        UNKNOWN,
    ),
    "the second bad": (
        (OK, refuse(400)),
        (OK, fail(Code.INVALID_ARGUMENT)),
        UNKNOWN,
        UNKNOWN,
    ),
    "both bad": ((refuse(400),), (fail(Code.INVALID_ARGUMENT),), REFUSED, REFUSED),
    # By HTTP nothing is sent after a part that fails.
    "the first bad": ((refuse(400), OK), (fail(Code.INVALID_ARGUMENT), OK), REFUSED, UNKNOWN),
    "all rejected": ((reject(2),), (reject(2),), REFUSED, REFUSED),
    "one rejected": ((reject(2), OK), (reject(2), OK), DELIVERED, DELIVERED),
}


@pytest.mark.parametrize(("http", "by_grpc", "of_http", "of_grpc"), PARTS.values(), ids=PARTS)
def test_the_parts_of_a_request_are_judged_together(
    http: tuple[Answer, ...],
    by_grpc: tuple[Answer, ...],
    of_http: Outcome,
    of_grpc: Outcome,
    inbox: Inbox,
    to: To,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where one was taken and another was not, the same request is to be made again."""
    monkeypatch.setattr(module, "_MOST_POINTS", 2)
    over_http = isinstance(inbox, Sink)
    inbox.answer(*(http if over_http else by_grpc))
    assert to(inbox).send(metrics(), POINTS)[0] is (of_http if over_http else of_grpc)


def test_a_large_request_arrives_whole(inbox: Inbox, to: To) -> None:
    many = 10_001
    assert to(inbox, 20).send(metrics(many), many) == (DELIVERED, "")
    assert sorted(len(request.points) for request in inbox.requests) == [1, 10_000]
    assert {point.value for point in inbox.points} == set(range(many))


def test_one_fault_is_forgotten_with_the_next_request(inbox: Inbox, to: To) -> None:
    sender = to(inbox)
    inbox.answer(reject(1), OK)
    assert sender.send(metrics(), POINTS)[1]
    assert sender.send(metrics(), POINTS) == (DELIVERED, "")


# Limits

LOCATION: Final = {"Location": "http://127.0.0.1:9/"}
LARGE: Final = {
    "huge": Answer(body=bytes(32 << 20)),
    "huge refusal": Answer(status=500, body=bytes(32 << 20)),
    "huge redirect": Answer(status=307, headers=LOCATION, body=bytes(32 << 20)),
    "bomb": saying(BOMB, **{"Content-Encoding": "gzip"}),
    "bomb in a refusal": Answer(status=400, headers={"Content-Encoding": "gzip"}, body=BOMB),
    "bomb in a redirect": Answer(
        status=302, headers={"Content-Encoding": "gzip", **LOCATION}, body=BOMB
    ),
}


@pytest.mark.parametrize("answer", LARGE.values(), ids=LARGE)
def test_an_answer_of_any_size_takes_little_memory(sink: Sink, to: To, answer: Answer) -> None:
    sender = to(sink)
    sender.send(metrics(), POINTS)
    sink.answer(answer)
    tracemalloc.start()
    try:
        sender.send(metrics(), POINTS)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 << 20


def test_a_message_of_any_length_is_cut(inbox: Inbox, to: To) -> None:
    inbox.answer(reject(1, "no! " * 10_000))
    outcome, fault = to(inbox).send(metrics(), POINTS)
    assert outcome is DELIVERED
    assert fault.startswith("the receiver rejects 1 data points: no! no! ")
    assert len(fault) == 500


def test_a_body_that_trickles_takes_no_longer_than_the_timeout(sink: Sink, to: To) -> None:
    """A socket's own timeout begins anew with each byte."""
    sink.answer(Answer(body=reject(0, "." * 1_000).body, pause=0.1))
    began = monotonic()
    assert to(sink).send(metrics(), POINTS) == (UNKNOWN, NOT_OTLP)
    assert monotonic() - began < 20


@pytest.mark.parametrize("answer", [HANG, fail(Code.UNAVAILABLE)], ids=["hang", "backoff"])
def test_the_end_does_not_wait_for_grpc(to: To, answer: Answer) -> None:
    with GrpcSink() as sink:
        ended_soon(sink, to(sink, 60), answer)


def test_the_end_does_not_wait_for_a_new_try(sink: Sink, to: To) -> None:
    ended_soon(sink, to(sink, 60), refuse(503, retry_after="50"))


def ended_soon(inbox: Inbox, sender: Sender, answer: Answer) -> None:
    inbox.answer(answer)
    outcomes: list[Outcome] = []
    thread = threading.Thread(
        target=lambda: outcomes.append(sender.send(metrics(), POINTS)[0]), daemon=True
    )
    thread.start()
    inbox.wait_for_requests()
    began = monotonic()
    sender.close()
    thread.join(30)
    assert outcomes == [UNKNOWN]
    assert monotonic() - began < 15


def test_the_end_comes_while_http_hangs(sink: Sink, to: To) -> None:
    """The request goes on until its timeout, in a thread that nobody waits for."""
    sink.answer(HANG)
    sender = to(sink, 60)
    thread = threading.Thread(target=lambda: sender.send(metrics(), POINTS))
    thread.start()
    sink.wait_for_requests()
    sender.close()
    assert thread.is_alive()
    sink.release()
    thread.join(30)


# Headers


def test_headers_arrive(inbox: Inbox, to: To) -> None:
    to(inbox).send(metrics(), POINTS)
    headers = inbox.requests[0].headers
    assert (headers["authorization"], headers["x-team"]) == (f"Bearer {SECRET}", "red")


def test_no_answer_is_asked_to_be_packed(sink: Sink, to: To) -> None:
    to(sink).send(metrics(), POINTS)
    assert sink.requests[0].headers["accept-encoding"] == "identity"


def test_headers_for_metrics_win(inbox: Inbox, to: To, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "x-team=blue")
    to(inbox).send(metrics(), POINTS)
    headers = inbox.requests[0].headers
    assert headers["x-team"] == "blue"
    assert "authorization" not in headers


@pytest.mark.parametrize("named", [True, False], ids=["beside a header", "alone"])
def test_netrc_says_nothing(
    sink: Sink, to: To, named: bool, user_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = user_home / ".netrc"
    netrc.write_text("machine 127.0.0.1 login ana password of-another-program\n")
    netrc.chmod(0o600)
    if not named:
        monkeypatch.delenv("OTEL_EXPORTER_OTLP_HEADERS")
    to(sink).send(metrics(), POINTS)
    found = sink.requests[0].headers.get("authorization")
    assert found == (f"Bearer {SECRET}" if named else None)


def test_cookies_are_not_sent_back(sink: Sink, to: To) -> None:
    sink.answer(Answer(headers={"Set-Cookie": "id=1; Path=/"}))
    sender = to(sink)
    for _ in range(2):
        assert sender.send(metrics(), POINTS)[0] is DELIVERED
    assert ["cookie" in request.headers for request in sink.requests] == [False, False]


def test_a_connection_serves_many_requests(sink: Sink, to: To) -> None:
    with closing(to(sink)) as sender:
        for _ in range(3):
            assert sender.send(metrics(), POINTS)[0] is DELIVERED
        assert len(sink._server._connections) == 1


@pytest.mark.parametrize("compression", Compression)
def test_compression_is_as_it_was_told(inbox: Inbox, to: To, compression: Compression) -> None:
    sent = to(inbox, compression=compression).send(metrics(1_000), 1_000)
    assert sent == (DELIVERED, "")
    (request,) = inbox.requests
    assert len(request.points) == 1_000
    packed = compression is Compression.GZIP
    if isinstance(inbox, Sink):
        assert request.encoding == ("gzip" if packed else "")
        assert (request.size < 20_000) == packed


@pytest.mark.parametrize("text", ["", " "])
@pytest.mark.parametrize(
    "name", ["TIMEOUT", "COMPRESSION", "CERTIFICATE", "HEADERS", "TEMPORALITY_PREFERENCE"]
)
def test_a_variable_that_is_empty_is_not_set(
    inbox: Inbox, to: To, name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("", "METRICS_"):
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{kind}{name}", text)
    assert to(inbox).send(metrics(), POINTS) == (DELIVERED, "")


# TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


class Files:
    """Certificates in files, as the variables name them."""

    def __init__(self, folder: Path, authority: trustme.CA) -> None:
        leaf = authority.issue_cert("ana@example.org")
        self.authority = str(folder / "ca.pem")
        self.client = str(folder / "client.pem")
        self.key = str(folder / "client.key")
        authority.cert_pem.write_to_path(self.authority)
        leaf.private_key_pem.write_to_path(self.key)
        for pem in leaf.cert_chain_pems:
            pem.write_to_path(self.client, append=True)


@pytest.fixture
def files(tmp_path: Path, authority: trustme.CA) -> Files:
    return Files(tmp_path, authority)


@pytest.fixture(params=[Sink, GrpcSink], ids=["http", "grpc"])
def kind(request: pytest.FixtureRequest) -> type[Inbox]:
    found: type[Inbox] = request.param
    return found


def test_tls_trusts_the_authority_that_it_was_told(
    kind: type[Inbox],
    to: To,
    files: Files,
    authority: trustme.CA,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever other programs are told to trust."""
    others = tmp_path / "others.pem"
    trustme.CA().cert_pem.write_to_path(others)
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.setenv(name, str(others))
    with kind(authority.issue_cert("127.0.0.1")) as inbox:
        trusting = to(inbox, 5, certificate=files.authority)
        assert trusting.send(metrics(), POINTS) == (DELIVERED, "")
        assert len(inbox.points) == POINTS


@pytest.mark.parametrize("wrong", ["unknown", "name"])
def test_tls_sends_nothing_to_another(
    kind: type[Inbox], to: To, files: Files, authority: trustme.CA, wrong: str
) -> None:
    issuer = trustme.CA() if wrong == "unknown" else authority
    certificate = issuer.issue_cert("127.0.0.1" if wrong == "unknown" else "elsewhere.example")
    with kind(certificate) as inbox:
        outcome, fault = to(inbox, certificate=files.authority).send(metrics(), POINTS)
        assert outcome in (UNKNOWN, UNREACHED)
        assert re.search("certificate|verification", fault, re.IGNORECASE)
        assert inbox.requests == []


def test_tls_shows_the_clients_certificate(
    kind: type[Inbox], to: To, files: Files, authority: trustme.CA
) -> None:
    with kind(authority.issue_cert("127.0.0.1"), authority) as inbox:
        known = to(
            inbox,
            5,
            certificate=files.authority,
            client_certificate=files.client,
            client_key=files.key,
        )
        assert known.send(metrics(), POINTS) == (DELIVERED, "")
        unknown = to(inbox, certificate=files.authority)
        assert unknown.send(metrics(), POINTS)[0] is not DELIVERED
        assert len(inbox.requests) == 1
