"""The pages over HTTP: `/`, `/metrics`, `/-/healthy` and `/-/ready`.

Uvicorn runs in a thread of its own on sockets that were bound before. No client can delay another:
request heads, responses and idle connections have deadlines, open connections have a cap, and all
rendering is done by one worker thread, so that the event loop only moves bytes.
"""

from __future__ import annotations

import asyncio
import errno
import gzip
import ipaddress
import os
import re
import socket
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import formatdate
from html import escape
from string import Template
from typing import Any, Final, Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_TIMEOUT: Final = 10.0
"""Seconds from connecting, or from the first byte of a later request, to a complete request."""
RESPONSE_TIMEOUT: Final = 30.0
"""Seconds from a complete request head until the client has taken all but 64 KB of the answer."""
IDLE_TIMEOUT: Final = 120.0
"""Seconds between two requests on one connection: longer than the usual minute between scrapes."""
MAX_CONNECTIONS: Final = 128
"""Open connections; beyond it the one that has been idle longest makes room for the newcomer."""
STOP_GRACE: Final = 2
"""Seconds that answers under way get when the server stops."""

_BACKLOG: Final = 128
"""Asyncio accepts this many at once before we can evict any: keep it below the file limit."""

_HOST: Final = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::\d*)?")
_CODING: Final = re.compile(
    r"\s*([^\s;]+)\s*(?:;\s*q\s*=\s*(0(?:\.\d*)?|1(?:\.0*)?)\s*)?", re.ASCII
)

_REMEDIES: Final = {
    errno.EADDRINUSE: "stop the other program or choose another port with --web.listen-address",
    errno.EACCES: "choose a port above 1023 with --web.listen-address",
    errno.EADDRNOTAVAIL: "give --web.listen-address an address of this machine",
}

_BAD_REQUEST: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"x-content-type-options: nosniff\r\nconnection: close\r\ncontent-length: 22\r\n\r\n"
    b"Invalid HTTP request.\n"
)

_LANDING: Final = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>gemini-cli-exporter</title>
<link rel="icon" href="data:,">
<style>
:root { --ink: #1d2430; --soft: #5f6b7a; --line: #e1e5ea; --page: #f6f7f9; --card: #fff;
  --link: #1a5fd0; --good: #1b873f; --wait: #b25c00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #97a3b3; --line: #2c3440;
  --page: #12161c; --card: #1a2029; --link: #7fb0ff; --good: #4cc274; --wait: #f0a04b; } }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 42rem; margin: 10vh auto; padding: 0 1.25rem; }
h1 { margin: 0; font-size: 1.6rem; letter-spacing: -0.01em; }
h1 small { color: var(--soft); font-size: 1rem; font-weight: 400; }
p { margin: 0.35rem 0 1.5rem; color: var(--soft); }
table { width: 100%; border-collapse: collapse; background: var(--card);
  border: 1px solid var(--line); border-radius: 8px; border-spacing: 0; }
th, td { padding: 0.55rem 1rem; text-align: left; vertical-align: top; overflow-wrap: anywhere; }
tr + tr > * { border-top: 1px solid var(--line); }
th { width: 35%; color: var(--soft); font-weight: 400; }
td { font-variant-numeric: tabular-nums; }
nav { display: flex; flex-wrap: wrap; gap: 0.5rem 1.5rem; margin-top: 1.5rem; }
a { color: var(--link); }
.good { color: var(--good); }
.wait { color: var(--wait); }
</style>
</head>
<body>
<main>
<h1>gemini-cli-exporter <small>$version</small></h1>
<p>Exact token and cost counters for Gemini CLI, read from its transcripts.</p>
<table>
$rows
</table>
<nav>
<a href="$metrics">Metrics</a><a href="/-/healthy">Health</a><a href="/-/ready">Readiness</a>
</nav>
</main>
</body>
</html>
""")


class WebError(Exception):
    """The server cannot listen or start; the message is one line and says what to do."""


class Pages(Protocol):
    """What the pages show. `metrics` and `facts` are called in the worker thread, one at a time."""

    def metrics(self, accept: str) -> tuple[bytes, str] | None:
        """Return body and content type for an Accept header; None until the first scan is complete.

        While nothing has changed it should return the same object: it is then not compressed again.
        """
        ...

    def not_ready(self) -> str | None:
        """Return None when ready, else the reason; called on the event loop, so never blocking."""
        ...

    def facts(self) -> list[tuple[str, str]]:
        """Return the lines of the landing page as names and values, both plain text."""
        ...


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a host (a name or an address; empty: all) and port (0: any).

    Without a host and with `::` it takes IPv4 and IPv6 where the machine can do both. Of a name's
    addresses it takes the first usable one, IPv4 before IPv6. Raises WebError naming the address.
    """
    where = _address(host, port)
    if not 0 <= port <= 65535:  # getaddrinfo would silently take it modulo 65536
        raise WebError(
            f"cannot listen on {where}: give --web.listen-address a port from 0 to 65535"
        )
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, ValueError):  # ValueError: a name that cannot be encoded, or with a NUL
        raise WebError(
            f"cannot listen on {where}: unknown host; {_REMEDIES[errno.EADDRNOTAVAIL]}"
        ) from None
    preferred = socket.AF_INET if host else socket.AF_INET6
    problem: OSError | None = None
    for family, kind, protocol, _, address in sorted(found, key=lambda info: info[0] != preferred):
        sock = None
        try:
            # Only for a socket that names its protocol does asyncio switch Nagle's algorithm off,
            # which delays the body of each answer by 40 ms.
            sock = socket.socket(family, kind, protocol)
            if os.name == "posix":  # elsewhere it would let two programs share the port
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            sock.bind(address)
            sock.listen(_BACKLOG)
            return sock
        except OSError as error:
            if sock is not None:
                sock.close()
            problem = error
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                break
    number = problem.errno if problem and problem.errno else 0
    remedy = _REMEDIES.get(number, "choose another with --web.listen-address")
    raise WebError(f"cannot listen on {where}: {os.strerror(number).lower()}; {remedy}")


def accepts_gzip(header: str) -> bool:
    """Return whether an Accept-Encoding value wants gzip at least as much as no coding.

    RFC 9110, section 12.5.3. A part that cannot be read allows nothing.
    """
    weights: dict[str, float] = {}
    for part in header.lower().split(","):
        if match := _CODING.fullmatch(part):
            weights[match[1]] = float(match[2] or 1)
    wanted = weights.get("gzip", weights.get("*", 0.0))
    return wanted > 0 and wanted >= weights.get("identity", 0.0)


class _Site:
    """The application: what each path answers."""

    def __init__(self, pages: Pages, version: str, metrics_path: str) -> None:
        self._pages = pages
        self._version = version
        self._metrics_path = metrics_path
        self._worker = ThreadPoolExecutor(1, "web-render")
        self._zipped: tuple[bytes, bytes] = (b"", gzip.compress(b""))
        self.app = Starlette(
            routes=[
                Route(metrics_path, self._metrics),
                Route("/", self._landing),
                Route("/-/healthy", self._healthy),
                Route("/-/ready", self._ready),
            ]
        )
        self.app.router.redirect_slashes = False

    def close(self) -> None:
        self._worker.shutdown(cancel_futures=True)

    async def _metrics(self, request: Request) -> Response:
        accept = ", ".join(request.headers.getlist("accept"))
        zipped = accepts_gzip(",".join(request.headers.getlist("accept-encoding")))
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, self._render_metrics, accept, zipped)

    def _render_metrics(self, accept: str, zipped: bool) -> Response:
        page = self._pages.metrics(accept)
        if page is None:
            text = "The first scan of the transcripts is not complete yet.\n"
            return PlainTextResponse(text, 503, {"Retry-After": "5"})
        body, content_type = page
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        if zipped:
            if self._zipped[0] is not body:
                self._zipped = (body, gzip.compress(body, compresslevel=1, mtime=0))
            body = self._zipped[1]
            headers["Content-Encoding"] = "gzip"
        return Response(body, headers=headers)

    async def _landing(self, request: Request) -> Response:
        html = await asyncio.get_running_loop().run_in_executor(self._worker, self._render_landing)
        policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
        return HTMLResponse(html, headers={"Content-Security-Policy": policy})

    def _render_landing(self) -> str:
        reason = self._pages.not_ready()
        state = '<span class="good">ready</span>'
        if reason is not None:
            state = f'<span class="wait">not ready: {escape(reason)}</span>'
        rows = [f"<tr><th>State</th><td>{state}</td></tr>"]
        for name, value in self._pages.facts():
            rows.append(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>")
        return _LANDING.substitute(
            version=escape(self._version), rows="\n".join(rows), metrics=escape(self._metrics_path)
        )

    async def _healthy(self, request: Request) -> Response:
        return PlainTextResponse("healthy\n")

    async def _ready(self, request: Request) -> Response:
        reason = self._pages.not_ready()
        if reason is None:
            return PlainTextResponse("ready\n")
        return PlainTextResponse(f"not ready: {reason}\n", 503)


class _HostCheck:
    """Refuses requests made under a foreign name, as a page that rebinds its own name would.

    An address is no name, so it is always allowed: rebinding needs a name.
    """

    def __init__(self, app: ASGIApp, allowed: Iterable[str]) -> None:
        own = socket.gethostname()
        names = ("localhost", own, own.partition(".")[0], *allowed)
        self._app = app
        self._names = {name.lower().rstrip(".") for name in names} - {""}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        app = self._app
        if not host:
            app = PlainTextResponse("The request has no Host header.\n", 400)
        elif not self._allows(host):
            text = "This host name is not allowed: use an address, or give --web.allowed-host.\n"
            app = PlainTextResponse(text, 421)
        await app(scope, receive, send)

    def _allows(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        name = (match[1] or match[2]).lower().rstrip(".") if match else ""
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return True


@dataclass(frozen=True, slots=True)
class _Limits:
    request: float
    response: float
    idle: float
    connections: int


class _Config(uvicorn.Config):
    """Uvicorn's configuration, which it hands to each connection, with our limits."""

    def __init__(self, app: ASGIApp, limits: _Limits) -> None:
        super().__init__(
            app,
            loop="asyncio",
            http=_Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",  # its warnings are about strangers' junk: they would fill the log
            access_log=False,
            proxy_headers=False,
            server_header=False,
            headers=[("X-Content-Type-Options", "nosniff")],
            backlog=_BACKLOG,
            timeout_keep_alive=int(limits.idle) + 1,  # ours comes first
            timeout_graceful_shutdown=STOP_GRACE,
        )
        self.limits = limits


class _Connection(H11Protocol):
    """A connection with a deadline at every moment of its life; uvicorn knows only the idle one."""

    def __init__(self, config: _Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._limits = config.limits
        self._deadline: asyncio.TimerHandle | None = None
        self._resting = False
        self._since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._allow(self._limits.request)
        if len(self.connections) > self._limits.connections:
            others = (c for c in self.connections if isinstance(c, _Connection) and c is not self)
            evicted = min(others, key=lambda other: (other._busy, other._since))
            self.connections.discard(evicted)
            evicted.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._resting:
            self._allow(self._limits.request)
        date = (b"date", formatdate(usegmt=True).encode())  # uvicorn's tick would set it
        self.server_state.default_headers = [date, *self.config.encoded_headers]
        super().data_received(data)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and self._busy:
            self._allow(self._limits.response)

    def on_response_complete(self) -> None:
        if not self.flow.write_paused:
            self._rest()
        super().on_response_complete()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self._busy:
            self._rest()

    def send_400_response(self, msg: str) -> None:
        if not self._busy:
            self.transport.write(_BAD_REQUEST)
        self.transport.close()

    @property
    def _busy(self) -> bool:
        """Whether an answer is being made, or more than asyncio's 64 KB of it was not taken yet."""
        answering = self.cycle is not None and not self.cycle.response_complete
        return answering or self.flow.write_paused

    def _allow(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._resting = False
        self._since = self.loop.time()
        self._deadline = self.loop.call_later(seconds, self.transport.abort)

    def _rest(self) -> None:
        self._allow(self._limits.idle)
        self._resting = True


class _Server(uvicorn.Server):
    """Uvicorn's server, waiting for an event where the original wakes ten times a second."""

    def __init__(self, config: _Config) -> None:
        super().__init__(config)
        self.decided = threading.Event()

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._leave = asyncio.Event()
        self.decided.set()
        await self._leave.wait()

    def leave(self) -> None:
        self._loop.call_soon_threadsafe(self._leave.set)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        for connection in self.server_state.connections:  # those that outlived the grace
            connection.transport.abort()
        await asyncio.sleep(0)


class WebServer:
    """Serves the pages on listening sockets, from a thread of its own, until it is stopped."""

    def __init__(
        self,
        pages: Pages,
        sockets: Sequence[socket.socket],
        *,
        version: str,
        metrics_path: str = "/metrics",
        allowed_hosts: Iterable[str] = (),
        request_timeout: float = REQUEST_TIMEOUT,
        response_timeout: float = RESPONSE_TIMEOUT,
        idle_timeout: float = IDLE_TIMEOUT,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        """Take over sockets made by `bind`; they are closed by `stop`. Timeouts are in seconds."""
        self.addresses = [_address(*sock.getsockname()[:2]) for sock in sockets]
        self._sockets = list(sockets)
        self._site = _Site(pages, version, metrics_path)
        limits = _Limits(request_timeout, response_timeout, idle_timeout, max_connections)
        self._server = _Server(_Config(_HostCheck(self._site.app, allowed_hosts), limits))
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)

    def start(self) -> None:
        """Return when requests are answered; raises WebError when the server could not start."""
        self._thread.start()
        self._server.decided.wait()
        if not self._server.started:
            self._thread.join()
            raise WebError("the web server could not start; its error is logged above")

    def stop(self) -> None:
        """Finish the answers under way, within STOP_GRACE seconds, and close everything."""
        if self._thread.is_alive():
            self._server.leave()
            self._thread.join()
        for sock in self._sockets:
            sock.close()
        self._site.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=self._sockets)
        finally:
            self._server.decided.set()


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
