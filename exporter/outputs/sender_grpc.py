"""OpenTelemetry's exporter for gRPC, with an ear for what the receiver answers."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_METRICS_TIMEOUT as _TIMEOUT,
)

from .receiver import Compression, Receiver

if TYPE_CHECKING:
    from .sender import Verdict

_COMPRESSIONS = {
    Compression.NONE: grpc.Compression.NoCompression,
    Compression.GZIP: grpc.Compression.Gzip,
}


class GrpcSender(OTLPMetricExporter):
    """The exporter; the verdict that is asked for with each answer hears it."""

    def __init__(self, receiver: Receiver, verdict: Callable[[], Verdict], most: int) -> None:
        self._verdict = verdict
        if not os.environ.get(_TIMEOUT, "").strip():
            # The exporter makes a number of it even if it is empty, which means not set.
            os.environ.pop(_TIMEOUT, None)
        insecure = receiver.endpoint.startswith("http://")
        super().__init__(
            receiver.endpoint,
            insecure=insecure,
            credentials=None if insecure else _credentials(receiver),
            timeout=receiver.timeout,
            compression=_COMPRESSIONS[receiver.compression],
            max_export_batch_size=most,
        )

    def _initialize_channel_and_stub(self) -> None:
        # The exporter calls this also when it connects anew.
        super()._initialize_channel_and_stub()  # type: ignore[no-untyped-call]
        self._client: Any = _Listening(self._client, self._verdict)


class _Listening:
    """The exporter's client, whose calls are listened to."""

    def __init__(self, client: Any, verdict: Callable[[], Verdict]) -> None:
        self._client = client
        self._verdict = verdict

    def Export(self, **call: Any) -> Any:
        """Make a call as the exporter does, and pass on what comes of it."""
        try:
            answer = self._client.Export(**call)
        except grpc.RpcError as error:
            self._verdict().hear_grpc(error.code().name, error.details() or "")
            raise
        self._verdict().hear(answer)
        return answer


def _credentials(receiver: Receiver) -> grpc.ChannelCredentials:
    files = (receiver.certificate, receiver.client_key, receiver.client_certificate)
    root, key, chain = (_content(path) if path else None for path in files)
    return grpc.ssl_channel_credentials(root, key, chain)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
