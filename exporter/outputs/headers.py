"""Headers: what a client's compression header asks for, and those that the user wants set."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from .web_config import LiveConfig

_CODING: Final = re.compile(
    r"\s*([^\s;]+)\s*(?:;\s*q\s*=\s*(0(?:\.\d*)?|1(?:\.0*)?)\s*)?", re.ASCII
)


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


class ExtraHeaders:
    """Sets the headers of the web configuration in every answer, over those that a page has set."""

    def __init__(self, app: ASGIApp, live: LiveConfig) -> None:
        self._app = app
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on, and add the headers to what comes back."""
        extra = self._live.current().headers

        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in extra}
                own = [header for header in message.get("headers", ()) if header[0] not in names]
                message = {**message, "headers": [*own, *extra]}
            await send(message)

        await self._app(scope, receive, send_more if extra else send)
