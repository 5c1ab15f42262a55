"""What a receiver of OTLP can be told to answer: good news, bad news, lies, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceResponse,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a request is answered, and what becomes of its points; without more, all is well."""

    status: int = 200
    """Of HTTP."""
    code: grpc.StatusCode = grpc.StatusCode.OK
    """Of gRPC."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of HTTP."""
    body: bytes = b""
    """The serialized response; an empty one says that every point was taken."""
    pause: float = 0.0
    """Seconds before each byte of the body; before the only message of gRPC."""
    head_pause: float = 0.0
    """Seconds before each byte of the status line and the headers (HTTP)."""
    hangs: bool = False
    """Whether it comes only after `release`."""
    closes: bool = False
    """Whether the connection is closed instead (HTTP)."""
    keeps: bool = True
    """Whether points are kept."""
    rejected: int = 0
    """How many points, the last ones, are not."""


OK: Final = Answer()
GARBAGE: Final = Answer(body=b"\xffIt works!", keeps=False)
"""A success by its status only: no response of OTLP has this body."""
PORTAL: Final = Answer(
    headers={"Content-Type": "text/html"}, body=b"<html>Log in</html>", keeps=False
)
"""What a network says in the place of any server until one has logged in."""
HANG: Final = Answer(hangs=True)
CLOSE: Final = Answer(closes=True, keeps=False)


def refuse(status: int, **headers: str) -> Answer:
    """Return an HTTP answer of that status; a header is named as `retry_after` or `location`."""
    named = {name.replace("_", "-").title(): text for name, text in headers.items()}
    return Answer(status=status, headers=named, keeps=False)


def fail(code: grpc.StatusCode) -> Answer:
    """Return a gRPC answer of that status."""
    return Answer(code=code, keeps=False)


def reject(points: int, message: str = "") -> Answer:
    """Return a partial success, the last `points` rejected; with 0 of them it is a warning."""
    partial = ExportMetricsPartialSuccess(rejected_data_points=points, error_message=message)
    response = ExportMetricsServiceResponse(partial_success=partial)
    return Answer(body=response.SerializeToString(), rejected=points)


def trickle(length: int, pause: float) -> Answer:
    """Return a success whose body, of about `length` bytes, comes a byte each `pause` seconds."""
    return Answer(body=reject(0, "." * length).body, pause=pause)
