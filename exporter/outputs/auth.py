"""Basic authentication: who may see the pages, by name and password."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from .web_config import LiveConfig

_MAX_CLIENTS: Final = 32
"""Addresses that may wait for a verification at one time; they take turns."""
_MAX_WAITING: Final = 4
"""Requests of one address that may wait for a verification."""

_BCRYPT_BYTES: Final = 72
"""Bcrypt looks at no more of a password, and the library refuses a longer one."""


@dataclass(slots=True)
class _Line:
    """Requests of one address that wait for their verification, one after another."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    length: int = 0


class BasicAuth:
    """Lets a request through when its user and password are right, or when no users are configured.

    Bcrypt takes its time, so a right password is remembered, as a keyed digest in memory, one for
    each user, and valid only for the hash it was verified against. All others are verified by one
    thread, the addresses taking turns; where too many wait, 429 is the answer.
    """

    def __init__(self, app: ASGIApp, live: LiveConfig) -> None:
        self._app = app
        self._live = live
        self._secret = secrets.token_bytes(32)
        self._remembered: dict[str, bytes] = {}
        self._lines: dict[str, _Line] = {}
        self._worker = ThreadPoolExecutor(1, "web-auth")

    def close(self) -> None:
        """End the thread."""
        self._worker.shutdown(cancel_futures=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 or 429, or hand the request on."""
        app = self._app
        if users := self._live.current().users:
            given = _credentials(scope)
            right = given is not None and await self._verify(scope, users, *given)
            if right is None:
                text = "Too many passwords are being verified.\n"
                app = PlainTextResponse(text, 429, {"Retry-After": "1"})
            elif not right:
                challenge = 'Basic realm="gemini-cli-exporter", charset="UTF-8"'
                headers = {"WWW-Authenticate": challenge}
                app = PlainTextResponse("A user and a password are needed.\n", 401, headers)
        await app(scope, receive, send)

    async def _verify(
        self, scope: Scope, users: Mapping[str, bytes], user: str, password: bytes
    ) -> bool | None:
        """Return whether the password is that of the user; None when too many wait already."""
        known = user in users
        # An unknown user is compared with somebody's hash, always the same one: it costs the same.
        hashes = sorted(users.values())
        name = self._digest(user.encode(errors="surrogateescape"))
        hashed = users[user] if known else hashes[int.from_bytes(name) % len(hashes)]
        digest = self._digest(hashed + password)
        if known and self._remembers(user, digest):
            return True
        address = scope["client"][0] if scope["client"] else ""  # None: it has just left
        line = self._lines.setdefault(address, _Line())
        if line.length >= _MAX_WAITING or len(self._lines) > _MAX_CLIENTS:
            if not line.length:
                del self._lines[address]
            return None
        line.length += 1
        try:
            async with line.turn:
                if known and self._remembers(user, digest):
                    return True
                loop = asyncio.get_running_loop()
                right = await loop.run_in_executor(self._worker, _matches, password, hashed)
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[address]
        if known and right:
            self._remembered[user] = digest
        return known and right

    def _remembers(self, user: str, digest: bytes) -> bool:
        return hmac.compare_digest(self._remembered.get(user, b""), digest)

    def _digest(self, text: bytes) -> bytes:
        return hashlib.blake2b(text, key=self._secret, digest_size=32).digest()


def _matches(password: bytes, hashed: bytes) -> bool:
    import bcrypt

    try:
        return bcrypt.checkpw(password[:_BCRYPT_BYTES], hashed)
    except ValueError:  # a NUL in the password
        return False


def _credentials(scope: Scope) -> tuple[str, bytes] | None:
    """Return user and password of the one Authorization header, or None (RFC 7617)."""
    headers = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, encoded = (headers[0] if len(headers) == 1 else b"").partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except binascii.Error:
        return None
    return (user.decode(errors="surrogateescape"), password) if colon else None
