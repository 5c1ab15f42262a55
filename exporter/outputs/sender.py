"""Sends requests by OpenTelemetry's exporters, and judges what the receiver answers.

The exporters take every answer with a status below 400 for a success and do not look into it. But a
receiver may say in it that it took nothing, and behind the login page of a network each address
answers 200.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import closing
from enum import Enum
from http.cookiejar import DefaultCookiePolicy
from time import monotonic
from typing import Any, Final

import requests
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http import Compression as HttpCompression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
    OTLPMetricExporter as HttpExporter,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from urllib3.exceptions import ConnectTimeoutError

from .receiver import Compression, Protocol, Receiver

_MOST_POINTS: Final = 10_000
"""Data points of one request: gRPC receivers take 4 MiB by default."""
_MOST_ANSWER: Final = 65_536
"""Bytes of an answer that are looked at."""
_LONGEST_FAULT: Final = 500
"""Characters of what is told of a fault, which may be the receiver's own words."""
_BAD_DATA: Final = 400
_SERVER_ERROR: Final = 500


class Outcome(Enum):
    """What became of a request."""

    DELIVERED = "delivered"
    REFUSED = "refused"
    """Nothing was taken, and the same would not be taken again."""
    UNREACHED = "unreached"
    """Nothing was taken, and the same may be taken another time."""
    UNKNOWN = "unknown"
    """It may have arrived."""


class Verdict:
    """What the answers to one request, which may be sent in parts, say together."""

    def __init__(self) -> None:
        self.accepted = 0
        """Parts that were accepted, with all or some of their points."""
        self.doubtful = False
        """Whether an attempt may have arrived and was not answered as a whole."""
        self.bad_data = False
        """Whether a part was refused as one that nobody would take."""
        self.rejected = 0
        """Data points that were not taken out of accepted parts."""
        self.fault = ""
        """What went wrong last, in a few words; empty if nothing did."""

    def hear(self, answer: ExportMetricsServiceResponse) -> None:
        """Take an answer that was meant as a success."""
        self.accepted += 1
        partial = answer.partial_success
        self._take(partial.rejected_data_points, partial.error_message)

    def hear_http(self, status: int, kind: str, body: bytes) -> None:
        """Take an answer by HTTP with its status, content type and the beginning of its body."""
        if status >= 300:
            self.bad_data |= status == _BAD_DATA
            self.doubtful |= status >= _SERVER_ERROR
            self.fault = f"HTTP status {status}"
        elif kind.startswith("text/html"):
            self.fault = "a web page answers, no receiver of OTLP: behind the login of a network?"
        elif kind.startswith("application/json"):
            self._hear_json(body)
        elif kind.startswith("application/x-protobuf"):
            try:
                self.hear(ExportMetricsServiceResponse.FromString(body))
            except DecodeError:
                self.doubtful = True
                self.fault = "the answer is not one of OTLP"
        else:
            self.accepted += 1

    def hear_grpc(self, code: str, details: str) -> None:
        """Take a status other than OK by gRPC, which does not tell whether anybody was there."""
        bad_data = code == "INVALID_ARGUMENT"
        self.bad_data |= bad_data
        self.doubtful |= not bad_data
        self.fault = f"gRPC status {code}: {details}"

    def outcome(self, points: int, success: bool) -> Outcome:
        """Return what became of a request with so many points that the exporter calls a success."""
        if self.accepted and self.rejected < points:
            return Outcome.DELIVERED if success else Outcome.UNKNOWN
        if self.doubtful:
            return Outcome.UNKNOWN
        return Outcome.REFUSED if self.bad_data or self.rejected else Outcome.UNREACHED

    def _hear_json(self, body: bytes) -> None:
        self.accepted += 1
        try:
            partial = json.loads(body or b"{}")["partialSuccess"]
            self._take(int(partial["rejectedDataPoints"]), str(partial.get("errorMessage", "")))
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
            return  # receivers say all kinds of things in JSON when they have taken a request

    def _take(self, rejected: int, message: str) -> None:
        self.rejected += max(0, rejected)
        if rejected > 0:
            self.fault = f"the receiver rejects {rejected} data points: {message or 'no reason'}"


class Sender:
    """Sends to one receiver; one thread uses it, and any may close it."""

    def __init__(self, receiver: Receiver) -> None:
        """Make no connection yet."""
        self._verdict = Verdict()
        make = _grpc if receiver.protocol is Protocol.GRPC else _http
        self._exporter = make(receiver, lambda: self._verdict)
        # What they say is said here, once; their own words have no limit and may hold headers.
        for library in ("opentelemetry.exporter", "grpc"):
            logging.getLogger(library).setLevel(logging.CRITICAL)

    def send(self, data: MetricsData, points: int) -> tuple[Outcome, str]:
        """Send, for as long as the receiver's timeout; return the outcome and what went wrong."""
        self._verdict = verdict = Verdict()
        result = self._exporter.export(data)
        success = result is MetricExportResult.SUCCESS
        outcome = verdict.outcome(points, success)
        fault = verdict.fault[:_LONGEST_FAULT] or ("" if success else "no answer in time")
        return outcome, fault

    def close(self) -> None:
        """End the connections, and what waits to be tried again."""
        self._exporter.shutdown()


class _Session(requests.Session):
    """Looks at each answer before the exporter does; no answer is held in memory."""

    def __init__(self, verdict: Callable[[], Verdict]) -> None:
        super().__init__()
        self._verdict = verdict
        # Not one from ~/.netrc in the place of the header that was set.
        self.auth = lambda request: request
        # What is packed may become large.
        self.headers["Accept-Encoding"] = "identity"
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))

    def merge_environment_settings(
        self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any
    ) -> Any:
        """Add what the environment says, but let no REQUESTS_CA_BUNDLE win over what was set."""
        return super().merge_environment_settings(url, proxies, stream, self.verify, cert)

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Find none: even where none is followed, all of such an answer would be unpacked."""

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        ends = monotonic() + (options.get("timeout") or 0)
        try:
            response = super().send(request, **{**options, "stream": True})
            with closing(response):
                body = b""
                while len(body) < _MOST_ANSWER and monotonic() < ends:
                    part = response.raw.read1(_MOST_ANSWER - len(body), decode_content=False)
                    if not part:
                        break
                    body += part
        except Exception as error:
            verdict = self._verdict()
            verdict.fault = _words(error)
            verdict.doubtful |= not isinstance(_reason(error), ConnectTimeoutError)
            raise
        kind = response.headers.get("content-type", "").lower()
        self._verdict().hear_http(response.status_code, kind, body)
        return response


def _reason(error: Exception) -> object:
    """Return what urllib3 says that has failed; that no connection could be made is one class."""
    return getattr(error.args[0] if error.args else None, "reason", error)


def _words(error: Exception) -> str:
    """Return why a request has failed, without the objects that it went through."""
    inner: BaseException = error
    while (cause := inner.__cause__ or inner.__context__) is not None:
        inner = cause
    return f"{type(error).__name__}: {getattr(inner, 'strerror', None) or inner}"


def _http(receiver: Receiver, verdict: Callable[[], Verdict]) -> MetricExporter:
    compressions = {
        Compression.NONE: HttpCompression.NoCompression,
        Compression.GZIP: HttpCompression.Gzip,
    }
    return HttpExporter(
        receiver.endpoint,
        receiver.certificate or None,
        receiver.client_key or None,
        receiver.client_certificate or None,
        timeout=receiver.timeout,
        compression=compressions[receiver.compression],
        session=_Session(verdict),
        max_export_batch_size=_MOST_POINTS,
    )


def _grpc(receiver: Receiver, verdict: Callable[[], Verdict]) -> MetricExporter:
    # As heavy as all the rest together.
    from .sender_grpc import GrpcSender

    return GrpcSender(receiver, verdict, _MOST_POINTS)
