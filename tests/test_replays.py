"""Every recorded way of writing, watched in every way: each reply that was seen counts once."""

from __future__ import annotations

import heapq
import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import astuple, replace
from pathlib import Path
from random import Random
from typing import Any, BinaryIO

import pytest

from tests.program import Program
from tests.real import Expected, RealSet, ToolCount, Usage, Write, apply, names
from tests.support import Home, counted, home, summed
from tests.transcripts.test_counting import assert_never_falls

SEEDS = (1, 2)

WAKES = {"sleep": 10, "look": 4, "look at all": 4, "scan": 3, "restart": 1}
"""What a collector may do after a write, and how often it does it."""

STAND_SECONDS = 0.2
"""How long a file stands before it is emptied, deleted or replaced, where all must be seen."""

TICK_MS = 10
"""Milliseconds after which the clock of the file system moves on."""

GAP_SECONDS = 0.003
"""The longest wait between two other writes of a home."""


class Seen:
    """What a reader of the states that were looked at must count, by the plain rules.

    A reply counts once, with its first tokens, if any state that was looked at holds it; a tool
    call counts under its message, and a failure is final.
    """

    def __init__(self, real: RealSet) -> None:
        self._echo_of: dict[str, str] = real.truth.get("echo_of", {})
        self._asked: dict[str, str] = {
            message: call["model"]
            for call in real.truth["api_calls"]
            for message in call.get("message_ids", ())
        }
        self._open: dict[Path, BinaryIO] = {}
        self._tokens: dict[str, tuple[str, dict[str, int]]] = {}
        self._calls: dict[tuple[str, str], tuple[str, str, str]] = {}

    def look(self, path: Path) -> None:
        """Read the whole of one transcript, if it is there and in one piece.

        What a look has opened can be read once more after it was deleted or replaced.
        """
        opened = self._open.pop(path, None)
        if opened is not None:
            with opened:
                if not _leads_to(path, opened):
                    self._read(path.name, opened)
        with suppress(FileNotFoundError):
            self._open[path] = path.open("rb")
            self._read(path.name, self._open[path])

    @property
    def opened(self) -> list[Path]:
        """The transcripts of which something may be left, wherever they are now."""
        return list(self._open)

    def close(self) -> None:
        """Close what is open: there is no more to be had of what will be deleted."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _read(self, name: str, file: BinaryIO) -> None:
        file.seek(0)
        for message in messages_of(name, file.read()):
            if message.get("type") == "gemini":
                self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        key = message["id"]
        model = message.get("model") or self._asked.get(key, "")
        if message.get("tokens"):
            self._tokens.setdefault(key, (model, message["tokens"]))
        for call in message.get("toolCalls") or ():
            old = self._calls.get((key, call["id"]))
            if old is None or old[2] == "success":
                self._calls[key, call["id"]] = (model, call["name"], call["status"])

    @property
    def total(self) -> Expected:
        """The sums so far, for all projects together."""
        usage: dict[tuple[str, str], Usage] = defaultdict(Usage)
        tools: dict[tuple[str, str, str], ToolCount] = defaultdict(ToolCount)
        for key, (model, tokens) in self._tokens.items():
            if self._echo_of.get(key) in self._tokens:
                continue
            cached = tokens.get("cached", 0)
            usage["", model] += Usage(
                turns=1,
                input=tokens["input"] - cached,
                cached=cached,
                output=tokens["output"],
                thoughts=tokens.get("thoughts", 0),
                tool=tokens.get("tool", 0),
            )
        for model, tool, status in self._calls.values():
            tools["", model, tool] += ToolCount(1, status == "error", status == "cancelled")
        return Expected(dict(usage), dict(tools))


def _leads_to(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def messages_of(name: str, data: bytes) -> Iterator[dict[str, Any]]:
    """Yield every message of a transcript, wherever it stands in it."""
    if name.endswith(".json"):
        try:
            yield from json.loads(data)["messages"]
        except ValueError:
            return
        return
    for line in data.splitlines(keepends=True):
        if line.endswith(b"\n"):
            record = json.loads(line)
            yield record
            yield from record.get("messages", ())
            yield from record.get("$set", {}).get("messages", ())


class Audience:
    """A collector that looks now and then at a home that is being written, beside its model.

    Clock and modification times are those of the recording, so chance has no part in a run. The
    times of files move in steps, as with many kernels.
    """

    def __init__(self, home: Home, real: RealSet) -> None:
        self._home = home
        self._seen = Seen(real)
        self._snapshot = home.ledger.snapshot()
        self._folders: set[Path] = set()

    def witness(self, write: Write) -> set[Path]:
        """Set the clock to a write that was just made and return what it changed."""
        changed = {self._home.root / path for path in (write.path, write.to) if path}
        now = math.ceil(write.time * 1000)
        tick = now // TICK_MS * TICK_MS * 1_000_000
        for path in filter(Path.is_file, changed):
            os.utime(path, ns=(tick, tick))
        self._home.clock.now = now
        return changed

    def scan(self) -> None:
        """Look at everything, as at the start, when a folder came, or when it is time."""
        tmp = self._home.root / "tmp"
        self._folders = {*tmp.glob("*/chats"), *tmp.glob("*/chats/*/")}
        listed = [path for folder in self._folders for path in folder.iterdir()]
        self._look({*listed, *self._seen.opened}, self._home.collector.scan)

    def look(self, paths: Iterable[Path]) -> None:
        """Look at some files, as after their events."""
        self._look(paths, lambda: self._home.collector.look(map(str, paths)))

    def knows(self, paths: Iterable[Path]) -> bool:
        """Tell whether all of these lie where the last scan found transcripts."""
        return all(path.parent in self._folders for path in paths)

    @property
    def shown(self) -> Expected:
        """What is counted now, for all projects together."""
        return summed([counted(self._snapshot)])

    def restart(self) -> None:
        """End and start again, which begins with a look at everything."""
        self._home.restart()
        self._seen.close()
        self.scan()

    def close(self) -> None:
        """End without a last look."""
        self._seen.close()

    def _look(self, paths: Iterable[Path], work: Callable[[], None]) -> None:
        work()
        for path in paths:
            if path.parent in self._folders and path.suffix in (".json", ".jsonl"):
                self._seen.look(path)
        before, self._snapshot = self._snapshot, self._home.ledger.snapshot()
        assert_never_falls(before, self._snapshot)
        assert self.shown == self._seen.total


def at_most(few: Expected, many: Expected) -> bool:
    """Tell whether no count of the one is above the same count of the other."""
    more = _counts(many)
    return all(
        count <= limit
        for key, counts in _counts(few).items()
        for count, limit in zip(counts, more.get(key, (0,) * len(counts)), strict=True)
    )


def _counts(expected: Expected) -> dict[tuple[str, ...], tuple[int, ...]]:
    counts: dict[tuple[str, ...], tuple[int, ...]] = {}
    counts.update((key, astuple(count)) for key, count in expected.usage.items())
    counts.update((key, astuple(count)) for key, count in expected.tools.items())
    return counts


@pytest.mark.parametrize("name", names(replay=True))
def test_replay_watched_by_its_events_alone_gives_the_truth(
    name: str, real_sets: dict[str, RealSet], tmp_path: Path
) -> None:
    real = real_sets[name]
    with home(tmp_path) as scratch, closing(Audience(scratch, real)) as audience:
        for write in real.play(scratch.root):
            changed = audience.witness(write)
            if audience.knows(changed):
                audience.look(changed)
            else:
                audience.scan()
        assert audience.shown == summed([real.expected(watched=True)])
        assert scratch.skipped == {}


def in_pieces(writes: Iterable[Write], rng: Random) -> Iterator[Write]:
    """Cut some writes in two: what is half written can be seen, too."""
    for write in writes:
        if len(write.data) > 1 and rng.random() < 0.3:
            size = rng.randrange(1, len(write.data))
            yield replace(write, data=write.data[:size])
            write = replace(write, data=write.data[size:], offset=write.offset + size)
        yield write


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", names(replay=True))
def test_replay_watched_now_and_then_counts_what_was_seen(
    name: str, seed: int, real_sets: dict[str, RealSet], tmp_path: Path
) -> None:
    real, rng, unread = real_sets[name], Random(f"{name} {seed}"), set[Path]()
    with home(tmp_path) as scratch, closing(Audience(scratch, real)) as audience:
        for write in in_pieces(real.replay(), rng):
            apply(write, scratch.root)
            changed = audience.witness(write)
            unread |= changed
            match rng.choices(list(WAKES), list(WAKES.values()))[0]:
                case "look":
                    audience.look(changed)
                case "look at all":
                    audience.look(unread)
                    unread.clear()
                case "scan":
                    audience.scan()
                case "restart":
                    audience.restart()
        audience.scan()
        least, most = (summed([real.expected(watched)]) for watched in (False, True))
        assert at_most(least, audience.shown)
        assert at_most(audience.shown, most)
        assert scratch.skipped == {}


def play_at_once(homes: dict[Path, RealSet], stand: float) -> None:
    """Write all homes at the same time; in each the gaps are those of the recording, but short.

    A file is left alone for `stand` seconds before what is in it is taken away.
    """
    plays = [(real.replay(), root) for root, real in homes.items()]
    queue = [(0.0, number, next(replay)) for number, (replay, _) in enumerate(plays)]
    written: dict[Path, float] = {}
    while queue:
        due, number, write = heapq.heappop(queue)
        time.sleep(max(0.0, due - time.monotonic()))
        replay, root = plays[number]
        apply(write, root)
        now = written[root / write.path] = time.monotonic()
        following = next(replay, None)
        if following is not None:
            due = now + min(following.time - write.time, GAP_SECONDS)
            if following.op in ("truncate", "unlink", "rename"):
                due = max(due, written.get(root / following.path, 0) + stand)
            heapq.heappush(queue, (due, number, following))


def test_the_program_sees_every_state_of_all_homes_while_they_are_written(
    real_sets: dict[str, RealSet], tmp_path: Path
) -> None:
    """One process, all recorded homes at once, thousands of writes in a few seconds."""
    homes = {tmp_path / name: real_sets[name] for name in names(replay=True)}
    expected = summed(real.expected(watched=True) for real in homes.values())
    for root in homes:
        root.mkdir()
    with Program(tmp_path, list(homes)) as program:
        program.start()
        program.metrics()
        play_at_once(homes, STAND_SECONDS)
        metrics = program.metrics(lambda it: summed([it.counted]) == expected)
        assert summed([metrics.counted]) == expected
        assert metrics.by_label("gemini_cli_exporter_records_skipped_total", "reason") == {}
        assert metrics.by_label("gemini_cli_exporter_file_errors_total", "reason") == {}
        assert program.stop() == 0
