"""A running `serve`: what it answers, and what the kernel says that it costs.

What is measured of it covers all the processes that it has at that moment.
"""

from __future__ import annotations

import gzip
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from .process import CommandError, Peaks, characters_read, cpu_seconds, status, tree

_READY_SECONDS = 300.0
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.005
_SERVING = re.compile(rb"\bmsg=serving\b.*\burl=http://([\d.]+):(\d+)/")

PROMETHEUS = {
    "Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
    "Accept-Encoding": "gzip",
    "X-Prometheus-Scrape-Timeout-Seconds": "10",
}
"""What Prometheus sends. The last one also tells an exporter that a scraper is asking."""


class Server:
    """The process and a connection to it; `running` makes one.

    Whatever is asked of it raises CommandError with its last words once it has ended.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self._log = log
        self._started = time.perf_counter()
        try:
            with log.open("wb") as errors:
                self._process = subprocess.Popen(
                    command, env=dict(env), stdout=subprocess.DEVNULL, stderr=errors
                )
        except OSError as error:
            raise CommandError(f"cannot run {command[0]}: {error.strerror}") from error
        self._peaks = Peaks(self._process.pid)

    def wait(self) -> None:
        """Wait until it is ready, which sets `start_seconds`."""
        deadline = self._started + _READY_SECONDS
        while not (found := _SERVING.search(self._log.read_bytes())):
            self._rest(deadline)
        self._http = HTTPConnection(found[1].decode(), int(found[2]), timeout=60)
        while self._get("/-/ready", {})[0] != 200:
            self._rest(deadline)
        self.start_seconds = time.perf_counter() - self._started

    def stop(self) -> None:
        """Ask it to end; it must do so in time and without an error."""
        self._http.close()
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise self._error("did not stop") from None
        if code:
            raise self._error(f"exited {code}")

    def kill(self) -> None:
        """End it whatever it does; nothing happens if it has ended."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def text(self) -> str:
        """The exposition as a person gets it: plain text and all values true."""
        return self._metrics({}).decode()

    def scrape(self) -> bytes:
        """The exposition as Prometheus gets it: OpenMetrics, compressed."""
        return self._metrics(PROMETHEUS)

    def value(self, series: str) -> float:
        """The value of a series, spelled as it is exposed; 0 if there is none."""
        found = re.search(rf"^{re.escape(series)} (\S+)$", self.text(), re.MULTILINE)
        return float(found[1]) if found else 0.0

    @property
    def cpu(self) -> float:
        """Seconds of processor time since it started."""
        return sum(map(cpu_seconds, self._tree()))

    @property
    def characters(self) -> int:
        """Bytes that it has read since it started, of whatever kind."""
        return sum(map(characters_read, self._tree()))

    @property
    def resident(self) -> int:
        """Bytes of memory in use."""
        return sum(status(pid, "VmRSS") for pid in self._tree()) * 1_024

    @property
    def peak(self) -> int:
        """The most bytes of memory that it ever used; the peaks of its processes are added up."""
        self._peaks.look()
        return self._peaks.total

    @property
    def threads(self) -> int:
        """How many threads it has."""
        return sum(status(pid, "Threads") for pid in self._tree())

    def _tree(self) -> list[int]:
        return tree(self._process.pid)

    def _metrics(self, headers: Mapping[str, str]) -> bytes:
        code, body = self._get("/metrics", headers)
        if code != 200:
            raise self._error(f"answered {code} to a scrape")
        return body

    def _get(self, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        try:
            self._http.request("GET", path, headers=dict(headers))
            response = self._http.getresponse()
            return response.status, response.read()
        except (OSError, HTTPException) as error:
            raise self._error(f"did not answer ({error})") from error

    def _rest(self, deadline: float) -> None:
        if self._process.poll() is not None:
            raise self._error(f"exited {self._process.returncode}")
        if time.perf_counter() > deadline:
            raise self._error("is not ready")
        self._peaks.look()
        time.sleep(_POLL_SECONDS)

    def _error(self, what: str) -> CommandError:
        last = self._log.read_bytes()[-2_000:].decode(errors="replace")
        return CommandError(f"serve {what}: {last}")


@contextmanager
def running(command: Sequence[str], env: Mapping[str, str], log: Path) -> Iterator[Server]:
    """A server that is ready and stops with the block; what it logs goes to the file `log`."""
    server = Server(command, env, log)
    try:
        server.wait()
        yield server
        server.stop()
    finally:
        server.kill()


def sample_lines(scraped: bytes) -> list[str]:
    """The samples of what `scrape` returned."""
    lines = gzip.decompress(scraped).decode().splitlines()
    return [line for line in lines if not line.startswith("#")]
