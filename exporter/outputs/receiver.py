"""Where OTLP goes: the standard OTEL_* variables, which configure it and never switch it on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

_METRICS: Final = "OTEL_EXPORTER_OTLP_METRICS_"
_ALL: Final = "OTEL_EXPORTER_OTLP_"
_PATH: Final = "/v1/metrics"
_LONGEST_MS: Final = 86_400_000
_HEADER: Final = re.compile(r'[A-Za-z0-9._-]+ *=[^",;\\]*')
"""A header that the exporters can send. They log one that they cannot, and all of it."""

_Choice = TypeVar("_Choice", bound=StrEnum)


class ReceiverError(Exception):
    """A variable cannot be used: one line with its name, what is wrong and the remedy."""


class Protocol(StrEnum):
    """How requests are sent."""

    HTTP = "http/protobuf"
    GRPC = "grpc"


class Compression(StrEnum):
    """How requests are made smaller."""

    NONE = "none"
    GZIP = "gzip"


class Temporality(StrEnum):
    """What counters hold: the total, or what it grew by; `lowmemory` is the latter for them."""

    CUMULATIVE = "cumulative"
    DELTA = "delta"
    LOWMEMORY = "lowmemory"


class Receiver(NamedTuple):
    """Where and how to send; times are in seconds, files are empty where none is set.

    `endpoint` is the URL of the metrics for HTTP, and that of the server for gRPC. Headers are left
    to the exporter, since they hold secrets.
    """

    endpoint: str
    protocol: Protocol
    timeout: float
    interval: float
    compression: Compression
    temporality: Temporality
    certificate: str
    client_certificate: str
    client_key: str


def receiver_of(environ: Mapping[str, str], endpoint: str | None) -> Receiver:
    """Return what the variables say; an endpoint that is given wins. Raises ReceiverError.

    A variable for metrics wins over the one for all signals. Meanings and defaults:
    https://opentelemetry.io/docs/specs/otel/protocol/exporter/
    """
    variables = _Variables(environ)
    protocol = variables.choice("PROTOCOL", Protocol.HTTP)
    variables.check_headers()
    return Receiver(
        _url(variables, protocol, endpoint),
        protocol,
        variables.seconds(*variables.found("TIMEOUT"), 10_000),
        variables.seconds(*variables.one("OTEL_METRIC_EXPORT_INTERVAL"), 60_000),
        variables.choice("COMPRESSION", Compression.NONE),
        variables.choice("TEMPORALITY_PREFERENCE", Temporality.CUMULATIVE),
        variables.file("CERTIFICATE"),
        variables.file("CLIENT_CERTIFICATE"),
        variables.file("CLIENT_KEY"),
    )


def endpoint_url(text: str) -> str:
    """Return an endpoint as it is used; raises ValueError that says how to write it.

    A user and a password are refused: endpoints are logged.
    """
    text = text.strip().rstrip("/")
    try:
        url = urlsplit(text)
        known = url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError:
        known = False
    if not known:
        raise ValueError("is not a URL such as http://localhost:4318 or https://otlp.example.com")
    if url.username is not None or url.password is not None:
        raise ValueError("holds a user or password: write them as OTEL_EXPORTER_OTLP_HEADERS")
    if url.query or url.fragment or not text.isprintable() or " " in text:
        raise ValueError("must end with the path: no ?, no # and no spaces")
    return url.geturl()


def _url(variables: _Variables, protocol: Protocol, endpoint: str | None) -> str:
    name, text = variables.found("ENDPOINT")
    insecure = variables.found("INSECURE")[1].lower() == "true"
    if endpoint is not None:
        name, text = "--otlp.endpoint", endpoint
    elif not text:
        text = f"http://localhost:{4317 if protocol is Protocol.GRPC else 4318}"
    elif protocol is Protocol.GRPC and "://" not in text:
        text = f"{'http' if insecure else 'https'}://{text}"
    try:
        url = endpoint_url(text)
    except ValueError as error:
        raise ReceiverError(f"{name}: {error}") from None
    # Only the variable for metrics has the whole URL; the others name what all signals share.
    whole = name.startswith(_METRICS) or url.endswith(_PATH)
    return url if protocol is Protocol.GRPC or whole else url + _PATH


class _Variables:
    """The OTEL_* variables; those that are empty are not set."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def one(self, name: str) -> tuple[str, str]:
        """Return a variable's name and value, which is empty if it is not set."""
        return name, self._environ.get(name, "").strip()

    def found(self, end: str) -> tuple[str, str]:
        """Return the variable with this end that is in force."""
        of_metrics, of_all = self.one(_METRICS + end), self.one(_ALL + end)
        return of_metrics if of_metrics[1] else of_all

    def choice(self, end: str, default: _Choice) -> _Choice:
        name, text = self.found(end)
        kind = type(default)
        try:
            return kind(text.lower()) if text else default
        except ValueError:
            raise ReceiverError(f"{name}: must be {' or '.join(kind)}, not {text!r}") from None

    def seconds(self, name: str, text: str, default: int) -> float:
        if not (text or str(default)).isascii() or not (text or str(default)).isdigit():
            raise ReceiverError(f"{name}: must be milliseconds, as in {default}, not {text!r}")
        milliseconds = int(text or default)
        if not 0 < milliseconds <= _LONGEST_MS:
            raise ReceiverError(f"{name}: must be 1 to {_LONGEST_MS} milliseconds, not {text}")
        return milliseconds / 1000

    def file(self, end: str) -> str:
        name, path = self.found(end)
        if path:
            try:
                with open(path, "rb"):
                    pass
            except OSError as error:
                raise ReceiverError(f"{name}: {path} cannot be read: {error.strerror}") from None
        return path

    def check_headers(self) -> None:
        """Raise ReceiverError, without what they hold, where headers are not NAME=VALUE,..."""
        name, text = self.found("HEADERS")
        for header in filter(None, map(str.strip, text.split(","))):
            said = unquote(header)
            if not (_HEADER.fullmatch(header) and said.isascii() and said.isprintable()):
                raise ReceiverError(
                    f"{name}: must be NAME=VALUE, several with commas between;"
                    " other commas, quotes, semicolons and backslashes as %2C, %22, %3B and %5C"
                )
