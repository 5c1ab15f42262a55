"""Killed at any moment and started again, while transcripts are written: nothing lost or doubled.

GEMINI_CLI_EXPORTER_TEST_KILLS sets how often; 200 take some minutes.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Self

import pytest

from exporter.demo import Plan, Truth, chats, write_home
from tests.program import Metrics, Program
from tests.real import Expected, RealSet, ToolCount, Usage, apply
from tests.support import summed

KILLS = int(os.environ.get("GEMINI_CLI_EXPORTER_TEST_KILLS", "8"))
KILLS_OF_A_LEDGER = 20
BACKLOG_TURNS = 6_000 if KILLS < 100 else 60_000
"""What the first scan begins with; a large one is read by two processes."""

KILLS_OF_FIRST_SCAN = 3
"""At most so many are meant for the first scan alone."""

HOMES = 7
"""Recorded homes that are played during the life of one ledger."""

START_SECONDS = 0.3
"""Roughly how long it takes to open the ledger and to catch up."""

LIFE_SECONDS = 0.4
"""The longest time between the first answer and the kill."""

PAUSE_SECONDS = 0.002


class Writer:
    """Plays recorded homes and invented conversations, some of each at the same time.

    `root` is where the invented ones go; `truth` is what they make countable so far. Each recorded
    home has a root of its own and is played to its end, also after the writer was told to end.
    """

    def __init__(self, root: Path, homes: dict[Path, RealSet], seed: int) -> None:
        self.truth = Truth()
        self.root = root
        self._homes = homes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._rng = Random(seed)
        self._plan_seeds = itertools.count(1_000 * seed)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        recorded = [self._recorded(root, real) for root, real in self._homes.items()]
        invented = [self._invented() for _ in range(3)]
        while recorded or not self._stop.is_set():
            lanes = recorded if self._stop.is_set() else recorded[:2] + invented
            lane = self._rng.choice(lanes)
            if next(lane, None) is None:
                recorded.remove(lane)
            time.sleep(self._rng.random() * PAUSE_SECONDS)

    def _recorded(self, root: Path, real: RealSet) -> Iterator[str]:
        for write in real.replay():
            apply(write, root)
            yield write.path

    def _invented(self) -> Iterator[str]:
        for seed in self._plan_seeds:
            for chat in chats(plan(seed, turns=60)):
                for write in chat.writes():
                    path = self.root / write.path
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with path.open("ab") as file:
                        file.write(write.line)
                    self.truth.add(chat.project.slug, write)
                    yield write.path


def plan(seed: int, turns: int) -> Plan:
    """Return a plan of small turns that ends now."""
    return Plan(
        end=datetime.now(UTC),
        projects=3,
        sessions=5,
        subagents=2,
        turns=turns,
        turn_bytes=4_000,
        seed=seed,
    )


def expected(truth: Truth) -> Expected:
    """Return what the invented conversations must give, in the form of the recorded truth."""
    return Expected(
        {key: Usage(*counts) for key, counts in truth.usage.items()},
        {key: ToolCount(*counts) for key, counts in truth.calls.items()},
    )


def is_complete(ledger: Path, scratch: Path) -> bool:
    """Tell whether the first scan of a ledger was finished, from a copy: it stays as it was."""
    scratch.mkdir()
    for file in ledger.parent.glob(f"{ledger.name}*"):
        shutil.copyfile(file, scratch / file.name)
    with closing(sqlite3.connect(scratch / ledger.name)) as db, suppress(sqlite3.OperationalError):
        return db.execute("SELECT 1 FROM meta WHERE key = 'complete'").fetchone() is not None
    return False


class Victim:
    """The program with one ledger, and what it has shown so far."""

    def __init__(self, folder: Path, roots: list[Path], rng: Random) -> None:
        folder.mkdir()
        self.program = Program(folder, roots)
        self.kills = 0
        self.early = 0
        """Kills before the first scan was complete."""
        self._ledger = folder / "ledger.db"
        self._rng = rng
        self._shown: dict[tuple[object, ...], float] = {}
        self._complete = False

    def live(self) -> None:
        """Start and be killed: at some point of the start, or while following the writer."""
        self.program.start()
        first_scan = not self._complete and self.kills < KILLS_OF_FIRST_SCAN
        if first_scan or self._rng.random() < 0.5:
            if first_scan or self._rng.random() < 0.8:
                self.program.wait_for_address()
            time.sleep(self._rng.random() * START_SECONDS)
        else:
            self.look(self.program.metrics())
            time.sleep(self._rng.random() * LIFE_SECONDS)
            self.look(self.program.metrics())
        self.program.kill()
        self.kills += 1
        scratch = self._ledger.with_name(f"copy-{self.kills}")
        self._complete = self._complete or is_complete(self._ledger, scratch)
        self.early += not self._complete

    def survive(self, truth: Expected) -> None:
        """Start for the last time, show exactly the truth, and end in peace."""
        self.program.start()
        metrics = self.program.metrics(lambda it: summed([it.counted]) == truth)
        self.look(metrics)
        assert summed([metrics.counted]) == truth
        assert self.program.stop() == 0

    def look(self, metrics: Metrics) -> None:
        """Hold what is shown now against what was shown before, in this life or another."""
        now = metrics.counters
        assert {key: value for key, value in self._shown.items() if now.get(key, 0) < value} == {}
        self._shown = now


@pytest.mark.timeout(60 + 5 * KILLS)
def test_no_kill_costs_or_doubles_anything(real_sets: dict[str, RealSet], tmp_path: Path) -> None:
    """Each ledger begins with all that the ones before it had to count, in its first scan."""
    rng, began, early = Random(KILLS), time.monotonic(), 0
    # Where a state of a file is there for a moment only, it depends on the kills what is seen.
    pool = [
        real
        for real in real_sets.values()
        if real.has_replay and "expected_watched" not in real.truth
    ]
    rng.shuffle(pool)
    parts = [expected(write_home(tmp_path / "backlog", plan(seed=0, turns=BACKLOG_TURNS)))]
    roots = [tmp_path / "backlog" / ".gemini"]
    for number, kills in enumerate(rounds(KILLS)):
        some, pool = pool[:HOMES], pool[HOMES:]
        homes = {tmp_path / f"{number}-{real.name}": real for real in some}
        writer = Writer(tmp_path / f"{number}-invented", homes, seed=number + 1)
        roots += [writer.root, *homes]
        victim = Victim(tmp_path / f"{number}-ledger", roots, rng)
        with victim.program:
            with writer:
                for _ in range(kills):
                    victim.live()
            parts += [expected(writer.truth), *(real.expected() for real in some)]
            victim.survive(summed(parts))
        early += victim.early
    turns = sum(turns.turns for turns in summed(parts).usage.values())
    seconds = time.monotonic() - began
    print(f"{KILLS} kills, {early} before the end of a first scan, {turns} turns, {seconds:.0f} s")


def rounds(kills: int) -> list[int]:
    """Return how often each of the ledgers is killed."""
    full, rest = divmod(kills, KILLS_OF_A_LEDGER)
    return [KILLS_OF_A_LEDGER] * full + [rest] * (rest > 0)
