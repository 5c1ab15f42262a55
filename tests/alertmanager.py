"""A real Alertmanager on a free port of loopback, and a webhook that keeps what it is told."""

from __future__ import annotations

import json
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self

import pytest

from tests.daemon import PATIENCE, POLL, Daemon

# Debian calls it by the other name, because another package has taken the first.
_PROGRAM: Final = next(
    filter(None, map(shutil.which, ("prometheus-alertmanager", "alertmanager"))), None
)

needs_alertmanager = pytest.mark.skipif(_PROGRAM is None, reason="alertmanager is not on the PATH")
"""Marks a test that starts an Alertmanager."""


class Webhook:
    """Receives what Alertmanager posts, as a context manager; served from a thread of its own."""

    def __init__(self) -> None:
        self.received: list[tuple[str, dict[str, Any]]] = []
        """Path and body of each message, in the order of their arrival."""
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.append((self.path, json.loads(body)))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing: what came is kept."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        """Where it listens, without a slash at the end."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait_for(self, wanted: Callable[[str, dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the first wanted alert of any message, told its path and itself.

        Raises AssertionError with all that came if it does not come in time.
        """
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for path, body in list(self.received):
                for alert in body["alerts"]:
                    if wanted(path, alert):
                        return dict(alert)
            time.sleep(POLL)
        raise AssertionError(f"not in {PATIENCE:.0f} s: {self.received}")


class Alertmanager(Daemon):
    """One process of it, with what its configuration file says."""

    def _command(self, config: Path) -> Sequence[str | Path]:
        assert _PROGRAM is not None
        return [
            _PROGRAM,
            f"--config.file={config}",
            f"--web.listen-address={self.address}",
            f"--storage.path={self._folder / 'data'}",
            # Without an address for its cluster it listens to no one but us.
            "--cluster.listen-address=",
        ]

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that it knows of, inhibited ones included."""
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=PATIENCE) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return found
