"""TLS: what a server says and demands in a handshake, and the connection until it is over."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any, Final

from uvicorn.server import ServerState

from .connection import Config, Connection, make_room

_CLIENTS: Final = {
    "": ssl.CERT_NONE,
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_VERSIONS: Final = {
    "": ssl.TLSVersion.TLSv1_2,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}


class TlsError(Exception):
    """A value of the configuration cannot be used; `key` says which, the message why."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key


def server_context(
    pem: Mapping[str, tuple[str, bytes]], client_auth_type: str, min_version: str
) -> ssl.SSLContext:
    """Return what a server does in a handshake; raises TlsError.

    `pem` holds path and bytes of `cert_file`, `key_file` and perhaps `client_ca_file`. The other
    two are named as the exporter-toolkit does, "" being its default. Of its ways to treat clients
    those are refused that ask for a certificate without verifying it: OpenSSL cannot.
    """
    if client_auth_type not in _CLIENTS:
        known = ", ".join(filter(None, _CLIENTS))
        raise TlsError(
            "client_auth_type", f"{client_auth_type} is not supported; there are {known}"
        )
    if min_version not in _VERSIONS:
        known = " or ".join(filter(None, _VERSIONS))
        raise TlsError("min_version", f"{min_version} is not supported; give {known}")
    verify = _CLIENTS[client_auth_type]
    if verify is not ssl.CERT_NONE and "client_ca_file" not in pem:
        raise TlsError("client_ca_file", f"is missing; {client_auth_type} needs it")
    if verify is ssl.CERT_NONE and "client_ca_file" in pem:
        hint = "is not RequireAndVerifyClientCert, so client_ca_file has no use; give both or none"
        raise TlsError("client_auth_type", hint)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    _load_own(context, pem)
    if verify is not ssl.CERT_NONE:
        path, _ = pem["client_ca_file"]
        try:
            context.load_verify_locations(path)
        except (OSError, ssl.SSLError):
            raise TlsError("client_ca_file", f"{path}: holds no PEM certificate") from None
        context.verify_mode = verify
    return context


def _load_own(context: ssl.SSLContext, pem: Mapping[str, tuple[str, bytes]]) -> None:
    certificate, text = pem["cert_file"]
    if b"-----BEGIN CERTIFICATE-----" not in text:
        raise TlsError("cert_file", f"{certificate}: holds no PEM certificate")
    key, text = pem["key_file"]
    if b"PRIVATE KEY-----" not in text:
        raise TlsError("key_file", f"{key}: holds no PEM private key")
    if b"ENCRYPTED" in text:
        raise TlsError("key_file", f"{key}: is encrypted; store it without a passphrase")
    try:
        context.load_cert_chain(certificate, key, password="")  # never ask on the terminal
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError("key_file", f"{key}: does not belong to {certificate}") from None
        raise TlsError("cert_file", f"{certificate} or {key} is damaged; make them anew") from None
    except OSError as error:
        raise TlsError("cert_file", f"{certificate} or {key}: {error.strerror}") from None


class Entrance(asyncio.Protocol):
    """A new connection until its TLS handshake is over; then a `Connection` takes over.

    Each is asked what the configuration says at that moment, so a change needs no new server. It
    counts as a connection from its first moment: a flood of silent clients has the same cap.
    """

    busy = False

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], **kwargs: Any
    ) -> None:
        self._inner = Connection(config, server_state, app_state, **kwargs)
        self._config = config
        self._connections: set[Any] = server_state.connections
        self._loop = self._inner.loop
        self._early = b""
        self._gone = False
        self.since = self._loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the handshake, unless plain HTTP is spoken."""
        self._wire = transport
        assert self._config.live is not None
        context = self._config.live.current().tls
        if context is None:
            transport.set_protocol(self._inner)
            self._inner.connection_made(transport)
            return
        transport.pause_reading()
        self._connections.add(self)
        make_room(self._connections, self, self._config.limits.connections)
        self._task = self._loop.create_task(self._shake_hands(context))

    def data_received(self, data: bytes) -> None:
        """Keep what came together with the end of the handshake."""
        self._early += data

    def eof_received(self) -> None:
        """Remember that the client left."""
        self._gone = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Remember that the client left."""
        self._gone = True
        self._connections.discard(self)

    def cut(self) -> None:
        """Close at once."""
        self._gone = True
        self._wire.abort()

    def shutdown(self) -> None:
        """Close at once, as the server stops."""
        self.cut()

    async def _shake_hands(self, context: ssl.SSLContext) -> None:
        try:
            transport = await self._loop.start_tls(
                self._wire,
                self,
                context,
                server_side=True,
                ssl_handshake_timeout=self._config.limits.request,
            )
        except OSError:  # Strangers' junk: it would fill the log.
            transport = None
        finally:
            self._connections.discard(self)
        if transport is None or self._gone:
            self._wire.abort()
            return
        transport.set_protocol(self._inner)
        self._inner.connection_made(transport, self._wire)
        if self._early:
            self._inner.data_received(self._early)
