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
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from starlette.types import ASGIApp

from .connection import Config, Limits
from .headers import ExtraHeaders
from .hosts import HostCheck
from .pages import Pages
from .site import Site

if TYPE_CHECKING:
    from .auth import BasicAuth
    from .web_config import WebConfig

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


class _Server(uvicorn.Server):
    """Uvicorn's server, waiting for an event where the original wakes ten times a second."""

    def __init__(self, config: Config) -> None:
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
        late: set[Any] = self.server_state.connections  # They outlived the grace.
        for guest in list(late):
            guest.cut()
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
        config: WebConfig | None = None,
        request_timeout: float = REQUEST_TIMEOUT,
        response_timeout: float = RESPONSE_TIMEOUT,
        idle_timeout: float = IDLE_TIMEOUT,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        """Take over sockets made by `bind`; they are closed by `stop`. Timeouts are in seconds.

        `allowed_hosts` are names, beside this machine's own, under which it may be asked. A change
        of the `config`'s files takes effect at the next connection or request.
        """
        self.scheme = "http" if config is None or config.tls is None else "https"
        self.addresses = [_address(*sock.getsockname()[:2]) for sock in sockets]
        self._sockets = list(sockets)
        self._authenticates = config is not None and config.authenticates
        self._site = Site(pages, version, metrics_path)
        self._auth: BasicAuth | None = None
        app: ASGIApp = self._site.app
        live = None
        if config is not None:
            from .auth import BasicAuth
            from .web_config import LiveConfig

            live = LiveConfig(config)
            app = self._auth = BasicAuth(app, live)
        app = HostCheck(app, allowed_hosts)
        if live is not None:
            app = ExtraHeaders(app, live)
        limits = Limits(request_timeout, response_timeout, idle_timeout, max_connections)
        self._server = _Server(Config(app, limits, live, backlog=_BACKLOG, grace=STOP_GRACE))
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
        if reachable and not self._authenticates:
            logger.warning(
                "anyone who can reach these addresses can read the metrics; ask for passwords or"
                " client certificates with --web.config.file, or listen on 127.0.0.1 only",
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
        if self._auth is not None:
            self._auth.close()

    def _run(self) -> None:
        try:
            self._server.run(sockets=self._sockets)
        finally:
            self._server.decided.set()


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
