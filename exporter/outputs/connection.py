"""One client's connection: what uvicorn makes of it, with limits and an eye on what was taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Final, Protocol

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

if TYPE_CHECKING:
    from .web_config import LiveConfig

WHEN_TAKEN: Final = "when_taken"
"""The key of a request's state that holds `Connection.when_taken`."""

_LOOK_AGAIN: Final = 0.05
"""Seconds between two looks at whether a slow client has taken an answer."""

_BAD_REQUEST: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"x-content-type-options: nosniff\r\nconnection: close\r\ncontent-length: 22\r\n\r\n"
    b"Invalid HTTP request.\n"
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds for a request, an answer, and idleness; how many connections may be open."""

    request: float
    response: float
    idle: float
    connections: int


class Config(uvicorn.Config):
    """Uvicorn's configuration, which it hands to each connection, with our limits."""

    def __init__(
        self, app: ASGIApp, limits: Limits, live: LiveConfig | None, *, backlog: int, grace: int
    ) -> None:
        """Without a `live` configuration plain HTTP is spoken.

        `grace` is the seconds that answers under way get when the server stops.
        """
        protocol: type[asyncio.Protocol] = Connection
        if live is not None:
            from .tls import Entrance as protocol
        super().__init__(
            app,
            loop="asyncio",
            http=protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",  # its warnings are about strangers' junk: they would fill the log
            access_log=False,
            proxy_headers=False,
            server_header=False,
            headers=[("X-Content-Type-Options", "nosniff")],
            backlog=backlog,
            timeout_keep_alive=int(limits.idle) + 1,  # ours comes first
            timeout_graceful_shutdown=grace,
        )
        self.limits = limits
        self.live = live


class Guest(Protocol):
    """What can be turned out when there are too many."""

    @property
    def busy(self) -> bool:
        """Whether an answer is being made, or more than asyncio's 64 KB of it was not taken yet."""
        ...

    since: float

    def cut(self) -> None:
        """Close at once, whatever has not been sent."""
        ...


def make_room(guests: set[Any], newcomer: Guest, most: int) -> None:
    """Where there are more than `most` guests, cut the one that has been idle longest."""
    if len(guests) > most:
        others: Iterator[Guest] = (guest for guest in guests if guest is not newcomer)
        evicted = min(others, key=lambda other: (other.busy, other.since))
        guests.discard(evicted)
        evicted.cut()


class Connection(H11Protocol):
    """A connection with a deadline at every moment of its life; uvicorn knows only the idle one."""

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], **kwargs: Any
    ) -> None:
        state = {**app_state, WHEN_TAKEN: self.when_taken}
        super().__init__(config, server_state, state, **kwargs)
        self._limits = config.limits
        self._deadline: asyncio.TimerHandle | None = None
        self._resting = False
        self.since = 0.0
        self._when_taken: Callable[[], object] | None = None
        self._untaken: list[Callable[[], object]] = []
        self._left = False

    def when_taken(self, call: Callable[[], object]) -> None:
        """Call this once the answer now being made has gone to the kernel, to its last byte.

        It is never called when the client left, was cut or failed before that. More cannot be
        known: what the kernel holds may still be lost with the client.
        """
        self._when_taken = call

    def cut(self) -> None:
        """Close at once, whatever has not been sent."""
        self._left = True
        self._wire.abort()

    def connection_made(  # type: ignore[override]
        self, transport: asyncio.Transport, wire: asyncio.Transport | None = None
    ) -> None:
        """Start its clock, and make room for it where there is none.

        `wire` is what lies below a transport of TLS.
        """
        super().connection_made(transport)
        self._wire = wire or transport
        self._allow(self._limits.request)
        make_room(self.connections, self, self._limits.connections)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell of the answers that were flushed before it closed."""
        if self._deadline is not None:
            self._deadline.cancel()
        if exc is None:  # closed by us, after all was flushed
            self._tell()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """Count the client as gone: asyncio closes, and drops what is written from now on."""
        if not self._unsent:
            self._tell()
        self._left = True
        super().eof_received()

    def shutdown(self) -> None:
        """Close as the server stops, when the answer under way is done."""
        if self.transport.is_closing():
            return
        idle = not self.busy and not self._unsent
        super().shutdown()
        if idle:
            self._wire.close()  # TLS would wait for the client's farewell.

    def data_received(self, data: bytes) -> None:
        """Start the clock of a request with its first byte."""
        if self._resting:
            self._allow(self._limits.request)
        date = (b"date", formatdate(usegmt=True).encode())  # uvicorn's tick would set it
        self.server_state.default_headers = [date, *self.config.encoded_headers]
        super().data_received(data)

    def handle_events(self) -> None:
        """Start the clock of an answer when its request is complete."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and self.busy:
            self._allow(self._limits.response)

    def on_response_complete(self) -> None:
        """Let the connection rest, unless much of the answer is still to be taken."""
        if self._when_taken is not None:
            self._untaken.append(self._when_taken)
            self._when_taken = None
            self._look()
        if not self.flow.write_paused:
            self._rest()
        super().on_response_complete()

    def resume_writing(self) -> None:
        """Let the connection rest when nearly all of the answer has been taken."""
        super().resume_writing()
        if not self.busy:
            self._rest()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, without cutting into an answer under way."""
        if not self.busy:
            self.transport.write(_BAD_REQUEST)
        self.transport.close()

    @property
    def busy(self) -> bool:
        """Whether an answer is being made, or more than asyncio's 64 KB of it was not taken yet."""
        answering = self.cycle is not None and not self.cycle.response_complete
        return answering or self.flow.write_paused

    def _look(self) -> None:
        """Tell when all has been taken; a connection that is closing tells when it is closed."""
        if not self._wire.is_closing():
            if self._unsent:
                self.loop.call_later(_LOOK_AGAIN, self._look)
            else:
                self._tell()

    @property
    def _unsent(self) -> int:
        """Bytes that the kernel has not got.

        TLS has a buffer of its own above the socket's, but fills it only while that is not empty.
        """
        return self._wire.get_write_buffer_size()

    def _tell(self) -> None:
        told, self._untaken = self._untaken, []
        for call in told:
            if not self._left:
                call()

    def _allow(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._resting = False
        self.since = self.loop.time()
        self._deadline = self.loop.call_later(seconds, self.cut)

    def _rest(self) -> None:
        self._allow(self._limits.idle)
        self._resting = True
