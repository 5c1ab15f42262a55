"""The web server: uvicorn in a thread of its own, on sockets that were bound before.

No client can delay another: request heads, responses and idle connections have deadlines, and open
connections have a cap.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import socket
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from .site import Pages, Site

logger = logging.getLogger(__name__)

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


class WebError(Exception):
    """The server cannot listen or start; the message is one line and says what to do."""


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
        self._site = Site(pages, version, metrics_path, allowed_hosts)
        limits = _Limits(request_timeout, response_timeout, idle_timeout, max_connections)
        self._server = _Server(_Config(self._site.app, limits))
        self._thread = threading.Thread(target=self._run, name="web", daemon=True)

    def start(self) -> None:
        """Return when requests are answered; raises WebError when the server could not start."""
        self._thread.start()
        self._server.decided.wait()
        if not self._server.started:
            self._thread.join()
            raise WebError("the web server could not start; its error is logged above")
        reachable = [
            address
            for address, sock in zip(self.addresses, self._sockets, strict=True)
            if not ipaddress.ip_address(sock.getsockname()[0]).is_loopback
        ]
        if reachable:
            logger.warning(
                "anyone who can reach these addresses can read the metrics",
                extra={"fields": {"addresses": reachable}},
            )

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
