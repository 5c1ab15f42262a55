"""A real Alertmanager on a free port of loopback, and a webhook that keeps what it is told."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self

import pytest

from tests.prometheus import PATIENCE

# Debian calls it by the other name, because another package has taken the first.
_PROGRAM: Final = next(
    filter(None, map(shutil.which, ("prometheus-alertmanager", "alertmanager"))), None
)

needs_alertmanager = pytest.mark.skipif(_PROGRAM is None, reason="alertmanager is not on the PATH")
"""Marks a test that starts an Alertmanager."""

_POLL: Final = 0.05


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
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL,))
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
            time.sleep(_POLL)
        raise AssertionError(f"not in {PATIENCE:.0f} s: {self.received}")


class Alertmanager:
    """One process of it, as a context manager: ready once entered, gone after.

    `config` is what its configuration file says; its data is kept in `folder`.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder.resolve()
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""
        """Host and port at which it answers; known once it was started."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and return once it is ready.

        Raises AssertionError with its log if it ends or is not ready in time.
        """
        assert _PROGRAM is not None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        config = self._folder / "alertmanager.yml"
        config.write_text(json.dumps(self._config))  # JSON is YAML
        command = [_PROGRAM, f"--config.file={config}", f"--web.listen-address={self.address}"]
        # Without an address for its cluster it listens to no one but us.
        command += [f"--storage.path={self._folder / 'data'}", "--cluster.listen-address="]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it and wait until it has ended; its data stays."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    @property
    def log(self) -> str:
        """What it said since it was started."""
        return (self._folder / "log").read_text(errors="replace")

    def alerts(self) -> list[dict[str, Any]]:
        """Return the alerts that it knows of, inhibited ones included."""
        url = f"http://{self.address}/api/v2/alerts"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return found

    def _wait(self) -> None:
        end = time.monotonic() + PATIENCE
        while not self._ready():
            assert self._process is not None
            assert self._process.poll() is None, self.log
            assert time.monotonic() < end, f"not ready in {PATIENCE:.0f} s\n{self.log}"
            time.sleep(_POLL)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=PATIENCE):
                return True
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False
