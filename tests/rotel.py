"""A real collector, Rotel, on free ports of loopback: what it receives it passes on to a sink."""

from __future__ import annotations

import importlib.util
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.daemon import PATIENCE, Daemon, free_address
from tests.otlp_sink import Sink


def _agent() -> tuple[Path | None, str]:
    """Return the program, or why it cannot be had."""
    package = importlib.util.find_spec("rotel")
    if package is None or package.origin is None:
        return None, "rotel is not installed"
    agent = Path(package.origin).with_name("rotel-agent")
    try:
        subprocess.run([agent, "version"], check=True, capture_output=True, timeout=PATIENCE)
    except (OSError, subprocess.CalledProcessError) as error:
        # It is linked with the shared library of Python, which not every Python brings along.
        return None, f"rotel does not run: {error}"
    return agent, ""


_AGENT, _REASON = _agent()

needs_rotel = pytest.mark.skipif(_AGENT is None, reason=_REASON)
"""Marks a test that starts a Rotel."""


class Rotel(Daemon):
    """One process of it, as a context manager: ready once entered, gone after.

    It takes metrics by OTLP, over HTTP at `url` and over gRPC at `grpc_address`, says yes at once,
    and passes on each request by HTTP to the sink.
    """

    def __init__(self, folder: Path, sink: Sink) -> None:
        super().__init__(folder, {})
        self._sink = sink
        self.grpc_address = ""
        """Host and port at which it answers gRPC; known once it was started."""

    def start(self) -> None:
        """Start it as any daemon is, with a second address."""
        self.grpc_address = self.grpc_address or free_address()
        super().start()

    def _command(self, config: Path) -> Sequence[str | Path]:
        assert _AGENT is not None
        return [
            _AGENT,
            "start",
            "--exporter=otlp",
            f"--otlp-http-endpoint={self.address}",
            f"--otlp-grpc-endpoint={self.grpc_address}",
            "--otlp-receiver-traces-disabled",
            "--otlp-receiver-logs-disabled",
            f"--otlp-exporter-endpoint={self._sink.url}",
            "--otlp-exporter-protocol=http",
            "--disable-batching",
            "--otlp-exporter-request-timeout=1s",
            "--otlp-exporter-retry-initial-backoff=50ms",
            "--otlp-exporter-retry-max-backoff=50ms",
        ]

    def _ready(self) -> bool:
        # It has no page to ask. Whatever it answers, it listens, and to gRPC it did so first.
        try:
            with urllib.request.urlopen(self.url, timeout=PATIENCE):
                return True
        except urllib.error.HTTPError as error:
            error.close()
            return True
        except OSError:
            return False
