"""The real program in a process of its own: served and killed at will, or run once and measured."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from prometheus_client.parser import text_string_to_metric_families

from tests.real import Expected, ToolCount, Usage

PATIENCE = 30.0
"""Seconds after which a process that should have answered or ended has failed."""

_Result = TypeVar("_Result")

_POLL = 0.01
_ADDRESS = re.compile(r"url=(http://[^\s/]+)/metrics")
_ENVIRONMENT = {name: text for name, text in os.environ.items() if not name.startswith("GEMINI_")}
_ENVIRONMENT["PYTHONFAULTHANDLER"] = "1"
_MEASURED = """
import re, resource, sys
from exporter.cli import main
code = main(sys.argv[1:])
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
print(peak + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""
"""The program, and at its end the most memory (KiB) that it and its children had."""


class Metrics:
    """One exposition, as a reader of it adds it up."""

    def __init__(self, text: str) -> None:
        self._values: dict[str, dict[tuple[tuple[str, str], ...], float]] = defaultdict(dict)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                self._values[sample.name][labels] = sample.value

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """Return the values of a metric that are not 0 by one label, summed over the others."""
        values: dict[str, float] = defaultdict(float)
        for labels, value in self._values[name].items():
            values[dict(labels)[label]] += value
        return {text: value for text, value in values.items() if value}

    def series(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Return the value of each series of a metric, by its sorted labels."""
        return dict(self._values[name])

    def value(self, name: str) -> float:
        """Return the sum of all series of a metric."""
        return sum(self._values[name].values())

    @property
    def counted(self) -> Expected:
        """Usage and tool calls in the form of the truth."""
        usage: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        for labels, value in self._values["gemini_cli_turns_total"].items():
            (_, model), (_, project) = labels
            usage[project, model]["turns"] = int(value)
        for labels, value in self._values["gemini_cli_tokens_total"].items():
            (_, kind), (_, model), (_, project) = labels
            usage[project, model][kind] = int(value)
        tools: dict[tuple[str, str, str], ToolCount] = {}
        for labels, calls in self._values["gemini_cli_tool_calls_total"].items():
            (_, model), (_, project), (_, tool) = labels
            failed = (
                self._values[f"gemini_cli_tool_{kind}_total"].get(labels, 0)
                for kind in ("errors", "cancellations")
            )
            tools[project, model, tool] = ToolCount(int(calls), *map(int, failed))
        return Expected({key: Usage(**counts) for key, counts in usage.items()}, tools)

    @property
    def counters(self) -> dict[tuple[object, ...], float]:
        """Every usage counter by its name and labels: those that outlive the process."""
        return {
            (name, *labels): value
            for name, series in self._values.items()
            if name.startswith("gemini_cli_") and name.endswith(("_total", "_bucket", "_count"))
            if not name.startswith("gemini_cli_exporter_")
            for labels, value in series.items()
        }


class Program:
    """`serve`, or `demo`, on a free port, with one ledger through all its lives."""

    def __init__(self, folder: Path, roots: Sequence[Path], command: str = "serve") -> None:
        self._log = folder / "log"
        self._command = [sys.executable, "-m", "exporter", command]
        self._command += ["--web.listen-address", "127.0.0.1:0"]
        self._command += ["--ledger.path", str(folder / "ledger.db")]
        for root in roots:
            self._command += ["--transcripts.root", str(root)]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Begin a life; its log begins anew."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, env=_ENVIRONMENT, stderr=log)

    def kill(self) -> None:
        """End it at once, as a power cut would; it may have ended before."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Ask it to end and return its exit code."""
        return self._end(signal.SIGTERM)

    @property
    def log(self) -> str:
        """What the present or last life said."""
        return self._log.read_text(errors="replace")

    def wait_for_address(self) -> str:
        """Return where it serves as soon as it listens, which is before the first scan."""
        return self._wait(lambda: _ADDRESS.search(self.log))[1]

    def metrics(self, enough: Callable[[Metrics], bool] = lambda _: True) -> Metrics:
        """Return the first metrics that are enough or, when patience has run out, the last ones."""
        url = self.wait_for_address() + "/metrics"
        end = time.monotonic() + PATIENCE
        while True:
            metrics = self._wait(lambda: _answer(url))
            if enough(metrics) or time.monotonic() > end:
                return metrics
            time.sleep(_POLL)

    def _wait(self, what: Callable[[], _Result | None]) -> _Result:
        """Return what there is as soon as there is something.

        Raises AssertionError if the process ends, or nothing comes.
        """
        end = time.monotonic() + PATIENCE
        while True:
            assert self._process is not None
            assert self._process.poll() is None, self.log
            result = what()
            if result is not None:
                return result
            assert time.monotonic() < end, self.log
            time.sleep(_POLL)

    def _end(self, how: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(how)
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)  # with it, Python says what its threads do
            self._process.wait()
            raise AssertionError(self.log) from None


def _answer(url: str) -> Metrics | None:
    """Return the metrics, or None as long as they are not served yet."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as response:
            return Metrics(response.read().decode())
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 503:
            raise
        return None


@dataclass(frozen=True, slots=True)
class Run:
    """What `once` printed, the most memory it had (bytes), and how long it took (seconds)."""

    metrics: Metrics
    peak: int
    seconds: float


def once(folder: Path, root: Path, patience: float = PATIENCE) -> Run:
    """Run `once` with the ledger in `folder` on one root (Linux).

    Raises AssertionError if it fails or says anything else, and TimeoutExpired.
    """
    command = [sys.executable, "-c", _MEASURED, "once", "--ledger.path", str(folder / "ledger.db")]
    started = time.monotonic()
    done = subprocess.run(
        [*command, "--transcripts.root", str(root)],
        env=_ENVIRONMENT,
        capture_output=True,
        timeout=patience,
        check=False,
    )
    seconds = time.monotonic() - started
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2_000:]
    assert done.stderr.strip().isdigit(), done.stderr.decode(errors="replace")[-2_000:]
    return Run(Metrics(done.stdout.decode()), int(done.stderr) * 1024, seconds)
