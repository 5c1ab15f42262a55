"""The Host header: under which names the pages may be asked for."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from typing import Final

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_HOST: Final = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::\d*)?")


class HostCheck:
    """Refuses requests made under a foreign name, as a page that rebinds its own name would.

    An address is no name, so it is always allowed: rebinding needs a name.
    """

    def __init__(self, app: ASGIApp, allowed: Iterable[str]) -> None:
        own = socket.gethostname()
        names = ("localhost", own, own.partition(".")[0], *allowed)
        self._app = app
        self._names = {name.lower().rstrip(".") for name in names} - {""}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 400 or 421, or hand the request on."""
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
