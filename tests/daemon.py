"""A server of somebody else's on a free port of loopback, with a folder and a log of its own."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

PATIENCE = 30.0
"""Seconds after which something that should have happened by now has failed."""

POLL = 0.05
"""Seconds between two looks whether it has."""


def free_address() -> str:
    """Return host and port, on loopback, at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


class Daemon(ABC):
    """One process of it, as a context manager: ready once entered, gone after.

    `config` is what its configuration file says; its data is kept in `folder`, and is taken up
    again if it is there already. One that is started again has the address that it had.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder.resolve()
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""
        """Host and port at which it answers; known once it was started."""

    @abstractmethod
    def _command(self, config: Path) -> Sequence[str | Path]:
        """Return the command that starts it, at `address`."""

    @property
    def url(self) -> str:
        """Where it answers, without a slash at the end."""
        return f"http://{self.address}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and return once it is ready.

        Raises AssertionError with its log if it ends or is not ready in time.
        """
        self.address = self.address or free_address()
        config = self._folder / "config.yml"
        config.write_text(json.dumps(self._config))  # JSON is YAML
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(self._command(config), stdout=log, stderr=log)
        try:
            self._wait("ready", self._ready)
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

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=PATIENCE):
                return True
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False

    def _wait(self, what: str, done: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not done():
            assert self._process is not None
            assert self._process.poll() is None, self.log
            assert time.monotonic() < end, f"{what}: not in {PATIENCE:.0f} s\n{self.log}"
            time.sleep(POLL)
