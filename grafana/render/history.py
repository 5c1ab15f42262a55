"""Invented days of some machines, as Prometheus would have scraped their exporters."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Final

from exporter.demo import Plan, chats
from exporter.ledger.audience import Audience
from exporter.ledger.budgets import Budgets, Calendar, Period
from exporter.ledger.pricing import PriceBook
from exporter.ledger.stats import Stats
from exporter.ledger.store import Ledger
from exporter.outputs.prometheus import Exposition
from exporter.transcripts.collector import Collector
from exporter.transcripts.files import ERROR_REASONS
from exporter.transcripts.shapes import Reason
from tests.past import take_in

SCRAPE: Final = 60
"""Seconds between two scrapes."""

_LAG_MS: Final = 15
"""What a file event takes until the line is read, as measured."""

_SAMPLE: Final = re.compile(rb"(?m)^([a-z]\w*)(?:\{(.*)\})? (\S+)$")


class Machine:
    """One exporter with a clock of its own, and the user's home that it looks into.

    Its series have `labels`. It is asleep for so many seconds before the end.
    """

    def __init__(
        self, home: Path, labels: Mapping[str, str], plan: Plan, budgets: Budgets, asleep: int = 0
    ) -> None:
        self._now = 0
        self._home, self._root = home, home / ".gemini"
        self._root.mkdir(parents=True)
        # A conversation's writes are in order already; those of several are woven by time.
        played = (write for chat in chats(plan) for write in chat.writes())
        self._writes = deque(sorted(played, key=lambda write: write.at))
        self._labels = ",".join(f'{name}="{text}"' for name, text in labels.items()).encode()
        self._asleep = asleep
        self._budgets = budgets
        self._live = 0

    def scrapes(self, start: int, end: int) -> Iterator[bytes]:
        """Yield what is scraped from `start` to `end` (seconds since the epoch)."""
        # Where the exporter shows a folder below the user's home, it does not say whose.
        os.environ["HOME"] = str(self._home)
        self._now = start * 1000
        while self._writes[0].at <= self._now:
            self._write()
        stats = Stats(start, Reason, ERROR_REASONS)
        stats.watcher_mode = "events"
        path = self._home / "ledger.db"
        with ExitStack() as parts:
            ledger = Ledger(path, PriceBook(), self._clock)
            parts.enter_context(closing(ledger))
            collector = Collector([str(self._root)], ledger, stats, self._clock)
            parts.enter_context(closing(collector))
            exposition = Exposition(ledger, stats, self._clock, self._budgets, process=False)
            collector.scan()
            for at in range(start, end - self._asleep, SCRAPE):
                for time in (at - SCRAPE // 2, at):
                    self._follow(collector, time * 1000)
                ledger.asked(Audience.SCRAPERS)
                view = exposition.view(Audience.SCRAPERS)
                scrape = exposition.render(view=view) + self._process(at - start)
                yield self._stamped(scrape, at)
                ledger.delivered(Audience.SCRAPERS, view.held)
                ledger.tend()

    def _clock(self) -> int:
        return self._now

    def _follow(self, collector: Collector, time: int) -> None:
        """Write line by line what is due until `time`, each with an event; then look at all."""
        while self._writes and self._writes[0].at <= time:
            self._now = self._writes[0].at + _LAG_MS
            collector.look([self._write()])
            self._live += 1
        self._now = time
        collector.scan()

    def _write(self) -> str:
        """Write the next line and return where."""
        write = self._writes.popleft()
        path = self._root / write.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(write.line)
        return str(path)

    def _process(self, age: int) -> bytes:
        """Return what a process of its own would use, about as the benchmarks measure it."""
        memory = 74_000_000 + age // 1800 * 7_919_000 % 3_000_000
        cpu = 0.002 * age + 0.002 * self._live
        return b"process_resident_memory_bytes %d\nprocess_cpu_seconds_total %.2f\n" % (memory, cpu)

    def _stamped(self, exposition: bytes, at: int) -> bytes:
        """Return the samples with their time and the labels that Prometheus adds."""

        def stamp(sample: re.Match[bytes]) -> bytes:
            labels = self._labels + (b"," + sample[2] if sample[2] else b"")
            return b"%s{%s} %s %d" % (sample[1], labels, sample[3], at)

        return b"\n".join(stamp(sample) for sample in _SAMPLE.finditer(exposition)) + b"\n"


def machines(folder: Path, end: datetime) -> list[Machine]:
    """Return two machines of a team that work until `end`, with some projects in common."""
    budgets = Budgets(
        Calendar(),
        _budget(25, 80, 300),
        {
            "harbor-api": _budget(8, 30, 100),
            "tide-watch": _budget(8, 30, 75),
        },
    )
    late = end + timedelta(hours=2)
    ana = Plan(late, projects=4, sessions=280, subagents=60, turns=10_000, days=20, seed=11)
    ben = Plan(late, projects=3, sessions=120, subagents=20, turns=4_000, days=20, seed=5)
    return [
        Machine(folder / "ana", {"job": "gemini-cli", "instance": "ana-laptop:9742"}, ana, budgets),
        Machine(folder / "ben", {"job": "gemini-cli", "instance": "ben-desk:9742"}, ben, budgets),
    ]


def _budget(day: int, week: int, month: int) -> dict[Period, Decimal]:
    amounts = zip(Period, (day, week, month), strict=True)
    return {period: Decimal(amount) for period, amount in amounts}


def write_blocks(folder: Path, machines: Sequence[Machine], end: datetime, hours: int) -> Path:
    """Replay the last hours before `end` and return the folder of a Prometheus that saw them.

    Raises AssertionError if promtool cannot make blocks of them.
    """
    stop = int(end.timestamp()) // SCRAPE * SCRAPE
    text, prometheus = folder / "history.txt", folder / "prometheus"
    with text.open("wb") as file:
        for machine in machines:
            file.writelines(machine.scrapes(stop - hours * 3600, stop + 1))
        file.write(b"# EOF\n")
    take_in(text, prometheus / "data")
    return prometheus
