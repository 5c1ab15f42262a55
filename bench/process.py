"""What a command costs: processor time, wall time and peak memory of its whole process tree."""

from __future__ import annotations

import os
import re
import resource
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_SAMPLE_MS = 10
_OPENED = re.compile(rb"= \d+<(.+)>$", re.MULTILINE)


class CommandError(Exception):
    """A measured command failed or did something wrong; the text names it and says what."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run: `cpu` (user and system, of the whole tree), `wall` in seconds, `peak` in bytes."""

    cpu: float
    wall: float
    peak: int
    output: bytes


def run(command: Sequence[str], env: Mapping[str, str]) -> Run:
    """Run a command to its end and measure it.

    Raises CommandError if it cannot be started or does not exit with 0.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        started = time.perf_counter()
        try:
            process = subprocess.Popen(command, env=dict(env), stdout=output, stderr=errors)
        except OSError as error:
            raise CommandError(f"cannot run {command[0]}: {error.strerror}") from error
        peak = _watch(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            last = errors.read()[-2_000:].decode(errors="replace")
            raise CommandError(f"{Path(command[0]).name} exited {process.returncode}: {last}")
        # The kernel's figure also covers the moment before exec, when the child still had our own
        # memory: it says something about the command only where it is larger than that.
        if usage.ru_maxrss > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss:
            peak = max(peak, usage.ru_maxrss * 1_024)
        return Run(usage.ru_utime + usage.ru_stime, wall, peak, output.read())


def opened(command: Sequence[str], env: Mapping[str, str], paths: set[str]) -> int:
    """How often a command and its children open one of `paths` (real paths).

    Raises CommandError if strace is missing or may not trace, or if the command fails.
    """
    if shutil.which("strace") is None:
        raise CommandError("strace is not installed")
    with tempfile.NamedTemporaryFile() as trace:
        options = ["-f", "-qq", "-y", "-e", "trace=open,openat,openat2", "-e", "signal=none"]
        run(["strace", *options, "-o", trace.name, *command], env)
        names = _OPENED.findall(trace.read())
    return sum(os.fsdecode(name) in paths for name in names)


class Peaks:
    """The memory peaks of the processes of a tree, as far as they were looked at.

    A process's peak only grows, so few looks see nearly all of it. Memory that two of them share
    counts twice, which is never in favour of the one that forks.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peaks: dict[int, int] = {}

    def look(self) -> None:
        """Take note of the peak of each process that is there."""
        for member in tree(self._pid):
            self._peaks[member] = max(self._peaks.get(member, 0), status(member, "VmHWM") * 1_024)

    @property
    def total(self) -> int:
        """The sum in bytes."""
        return sum(self._peaks.values())


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    members = [pid]
    for member in members:
        try:
            for task in os.listdir(f"/proc/{member}/task"):
                children = Path(f"/proc/{member}/task/{task}/children").read_text()
                members.extend(map(int, children.split()))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended between two looks
    return members


def status(pid: int, field: str) -> int:
    """A number of /proc/PID/status (memory is in kB); 0 if it, or the process, is not there."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = re.search(rf"^{field}:\s+(\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0


def cpu_seconds(pid: int) -> float:
    """What a process has used so far, user and system, with all its threads; raises OSError.

    /proc counts in ticks of 10 ms; the process's own clock, which any process may read on Linux, in
    nanoseconds. Its number is that of clock_getcpuclockid(3).
    """
    return time.clock_gettime(~pid << 3 | 2)


def characters_read(pid: int) -> int:
    """The bytes that a process has got from read(2) and the like, whatever it read."""
    return int(Path(f"/proc/{pid}/io").read_text().split()[1])


def _watch(pid: int) -> int:
    """Wait until a process ends and return the sum of the peaks (bytes) of all in its tree."""
    peaks = Peaks(pid)
    handle = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        while not poll.poll(_SAMPLE_MS):
            peaks.look()
    finally:
        os.close(handle)
    return peaks.total
