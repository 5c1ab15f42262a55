"""Receivers of OTLP metrics on loopback: they keep what arrives, and misbehave when told to."""

from __future__ import annotations

import gzip
import socket
import ssl
import sys
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

import grpc
import trustme
from google.protobuf.message import DecodeError

from tests.daemon import PATIENCE
from tests.otlp_answers import OK, Answer, fail, refuse
from tests.otlp_points import Point, Series, decoded

PATH: Final = "/v1/metrics"
CONTENT_TYPE: Final = "application/x-protobuf"

_SERVICE: Final = "opentelemetry.proto.collector.metrics.v1.MetricsService"
_DECODERS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "": bytes,
    "identity": bytes,
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
}
_THREADS: Final = 8
_END_POLL: Final = 0.005
"""Seconds between two looks whether to end; many tests start a receiver each."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it arrived, whatever it was answered.

    Its size is that of the body in bytes, compressed by HTTP but not by gRPC, which does not tell
    the encoding either. The names of headers are in lower case.
    """

    path: str
    headers: Mapping[str, str]
    encoding: str
    size: int
    points: tuple[Point, ...]


class Inbox(ABC):
    """One that receives, as a context manager.

    Before and after it is a dead one: nobody listens at its address, at which it starts again.
    With a certificate it speaks TLS, and with an authority of clients it wants one of theirs.
    """

    def __init__(
        self, certificate: trustme.LeafCert | None = None, clients: trustme.CA | None = None
    ) -> None:
        self._certificate = certificate
        self._clients = clients
        self._changed = threading.Condition()
        self._requests: list[Request] = []
        self._points: list[Point] = []
        self._answers: tuple[Answer, ...] = (OK,)
        self._releases = 0
        self._stopped = threading.Event()
        self._port = 0

    @property
    def address(self) -> str:
        """Host and port at which it answers; known once it was started."""
        return f"127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        """Where it answers, without a slash at the end."""
        return f"http{'s' if self._certificate else ''}://{self.address}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, and answer from other threads."""
        self._stopped.clear()
        self._port = self._listen()

    def stop(self) -> None:
        """Close all connections, those that hang too; what arrived stays."""
        self._stopped.set()
        self.release()
        self._close()

    @abstractmethod
    def _listen(self) -> int:
        """Begin to serve and return the port: the one that it has, if it has one."""

    @abstractmethod
    def _close(self) -> None:
        """End all that serves."""

    def answer(self, first: Answer, *others: Answer) -> None:
        """Answer the next requests so, one after the other, and all others as the last of them."""
        with self._changed:
            self._answers = (first, *others)

    def release(self) -> None:
        """Let go on what hangs now."""
        with self._changed:
            self._releases += 1
            self._changed.notify_all()

    @property
    def requests(self) -> list[Request]:
        """What arrived, in order; a request that could not be read has no points."""
        with self._changed:
            return list(self._requests)

    @property
    def points(self) -> list[Point]:
        """The points that were kept, in the order of their arrival."""
        with self._changed:
            return list(self._points)

    def latest(self) -> dict[Series, Point]:
        """Return the last point that was kept of each series."""
        return {point.series: point for point in self.points}

    def wait(
        self, wanted: int | Callable[[Sequence[Point]], bool] = 1, timeout: float = PATIENCE
    ) -> list[Point]:
        """Return the points that were kept as soon as they are as many or as they are wanted.

        Raises AssertionError with all that arrived if they are not in so many seconds.
        """
        with self._changed:
            self._await(self._points, wanted, timeout)
            return list(self._points)

    def wait_for_requests(self, count: int = 1, timeout: float = PATIENCE) -> list[Request]:
        """Return what arrived as soon as so many requests did; raises as `wait` does."""
        with self._changed:
            self._await(self._requests, count, timeout)
            return list(self._requests)

    def _await(
        self,
        found: Sequence[Any],
        wanted: int | Callable[[Sequence[Any]], bool],
        timeout: float,
    ) -> None:
        enough = wanted if callable(wanted) else lambda found: len(found) >= wanted
        came = self._changed.wait_for(lambda: enough(found), timeout)
        assert came, f"not in {timeout:g} s: {self._requests}"

    def _take(self, request: Request) -> Answer:
        """Note a request and return its answer when it is time for it."""
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()
            answer, *others = self._answers
            self._answers = (*others,) or self._answers
            if answer.hangs:
                now = self._releases
                self._changed.wait_for(lambda: self._releases > now or self._stopped.is_set())
            if answer.keeps and not self._stopped.is_set():
                self._points.extend(request.points[: max(0, len(request.points) - answer.rejected)])
                self._changed.notify_all()
        return answer


class Sink(Inbox):
    """Receives by HTTP, as protobuf."""

    _server: _Server

    def _listen(self) -> int:
        self._server = _Server(self, self._port)
        if self._certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._certificate.configure_cert(context)
            if self._clients is not None:
                self._clients.configure_trust(context)
                context.verify_mode = ssl.CERT_REQUIRED
            # The thread that serves a client shakes hands with it, not the one that accepts.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_END_POLL,))
        self._thread.start()
        return self._server.server_port

    def _close(self) -> None:
        self._server.shutdown()
        self._server.hang_up()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # Those are forgotten, and would answer on after the end.

    def __init__(self, sink: Sink, port: int) -> None:
        self.sink = sink
        self._connections: set[Any] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that does not wait for its answer, or trusts nobody."""
        if not isinstance(sys.exception(), ConnectionError | ssl.SSLError):
            super().handle_error(request, client_address)

    def hang_up(self) -> None:
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = _lowered(self.headers.items())
        encoding = headers.get("content-encoding", "")
        points, refusal = self._read(raw, encoding, headers.get("content-type", ""))
        request = Request(self.path, headers, encoding, len(raw), points)
        answer = self.server.sink._take(request)
        self._send(refusal or answer)

    do_GET = do_POST  # One who follows a redirect may come so.

    def _read(
        self, raw: bytes, encoding: str, content_type: str
    ) -> tuple[tuple[Point, ...], Answer | None]:
        if self.path != PATH:
            return (), refuse(404)
        if self.command != "POST":
            return (), refuse(405)
        if encoding not in _DECODERS or content_type != CONTENT_TYPE:
            return (), refuse(415)
        try:
            return tuple(decoded(_DECODERS[encoding](raw))), None
        except (DecodeError, OSError, EOFError, zlib.error):
            return (), refuse(400)

    def _send(self, answer: Answer) -> None:
        if answer.closes:
            self.close_connection = True
            return
        headers = {
            "Content-Type": CONTENT_TYPE,
            "Content-Length": str(len(answer.body)),
            **answer.headers,
        }
        lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._write(("\r\n".join(lines) + "\r\n\r\n").encode(), answer.head_pause)
        self._write(answer.body, answer.pause)

    def _write(self, data: bytes, pause: float) -> None:
        if not pause:
            self.wfile.write(data)
            return
        for byte in data:
            if self.server.sink._stopped.wait(pause):
                return
            self.wfile.write(bytes([byte]))

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: what came is kept."""


class GrpcSink(Inbox):
    """Receives by gRPC."""

    def _listen(self) -> int:
        # Linux would let two listen at one port, each to a part of what comes.
        options = [("grpc.so_reuseport", 0)]
        self._threads = ThreadPoolExecutor(_THREADS)
        self._server = grpc.server(self._threads, options=options)
        export: grpc.RpcMethodHandler[bytes, bytes]
        export = grpc.unary_unary_rpc_method_handler(self._export)
        service = grpc.method_handlers_generic_handler(_SERVICE, {"Export": export})
        self._server.add_generic_rpc_handlers((service,))
        if self._certificate is None:
            port = self._server.add_insecure_port(self.address)
        else:
            port = self._server.add_secure_port(self.address, self._credentials(self._certificate))
        self._server.start()
        return port

    def _credentials(self, certificate: trustme.LeafCert) -> grpc.ServerCredentials:
        chain = b"".join(pem.bytes() for pem in certificate.cert_chain_pems)
        clients = self._clients
        return grpc.ssl_server_credentials(
            [(certificate.private_key_pem.bytes(), chain)],
            clients.cert_pem.bytes() if clients else None,
            clients is not None,
        )

    def _close(self) -> None:
        self._server.stop(None).wait()
        self._threads.shutdown()

    def _export(self, body: bytes, context: grpc.ServicerContext) -> bytes:
        headers = _lowered((key, str(text)) for key, text in context.invocation_metadata())
        points: tuple[Point, ...] = ()
        refusal = None
        try:
            points = tuple(decoded(body))
        except DecodeError:
            refusal = fail(grpc.StatusCode.INVALID_ARGUMENT)
        answer = self._take(Request(f"/{_SERVICE}/Export", headers, "", len(body), points))
        answer = refusal or answer
        self._stopped.wait(answer.pause)
        if answer.code is not grpc.StatusCode.OK:
            context.abort(answer.code, f"told to say {answer.code.name}")
        return answer.body


def _lowered(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers}
