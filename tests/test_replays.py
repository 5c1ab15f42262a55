"""Every recorded way of writing, watched in every way: each reply that was seen counts once."""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.real import Expected, RealSet, ToolCount, Usage, Write, names
from tests.support import Home, counted, home
from tests.transcripts.test_counting import assert_never_falls, without_projects

SEEDS = (1, 2, 3)

WAKES = {"sleep": 10, "look": 4, "look at all": 4, "scan": 3, "restart": 1}
"""What a collector may do after a write, and how often it does it."""


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
        self._tokens: dict[str, tuple[str, dict[str, int]]] = {}
        self._calls: dict[tuple[str, str], tuple[str, str, str]] = {}

    def look(self, path: Path) -> None:
        """Read the whole of one transcript, if it is there and in one piece."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return
        for message in _messages(path.name, data):
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


def _messages(name: str, data: bytes) -> Iterator[dict[str, Any]]:
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

    Clock and modification times are those of the recording, so chance has no part in a run.
    """

    def __init__(self, home: Home, real: RealSet) -> None:
        self._home = home
        self._seen = Seen(real)
        self._snapshot = home.ledger.snapshot()
        self._folders: set[Path] = set()

    def witness(self, write: Write) -> set[Path]:
        """Set the clock to a write that was just made and return what it changed."""
        changed = {self._home.root / path for path in (write.path, write.to) if path}
        for path in filter(Path.is_file, changed):
            os.utime(path, (write.time, write.time))
        self._home.clock.now = math.ceil(write.time * 1000)
        return changed

    def scan(self) -> None:
        """Look at everything, as at the start, when a folder came, or when it is time."""
        tmp = self._home.root / "tmp"
        self._folders = {*tmp.glob("*/chats"), *tmp.glob("*/chats/*/")}
        paths = [path for folder in self._folders for path in folder.iterdir()]
        self._look(paths, self._home.collector.scan)

    def look(self, paths: Iterable[Path]) -> None:
        """Look at some files, as after their events."""
        names = list(map(str, paths))
        self._look(paths, lambda: self._home.collector.look(names))

    def knows(self, paths: Iterable[Path]) -> bool:
        """Tell whether all of these lie where the last scan found transcripts."""
        return all(path.parent in self._folders for path in paths)

    @property
    def shown(self) -> Expected:
        """What is counted now, for all projects together."""
        return without_projects(counted(self._snapshot))

    def restart(self) -> None:
        """End and start again, which begins with a look at everything."""
        self._home.restart()
        self.scan()

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
    return all(
        all(
            a <= b
            for a, b in zip(astuple(count), astuple(there.get(key, type(count)())), strict=True)
        )
        for here, there in ((few.usage, many.usage), (few.tools, many.tools))
        for key, count in here.items()
    )


@pytest.mark.parametrize("name", names(replay=True))
def test_replay_watched_by_its_events_alone_gives_the_truth(
    name: str, real_sets: dict[str, RealSet], tmp_path: Path
) -> None:
    real = real_sets[name]
    with home(tmp_path) as scratch:
        audience = Audience(scratch, real)
        for write in real.play(scratch.root):
            changed = audience.witness(write)
            if audience.knows(changed):
                audience.look(changed)
            else:
                audience.scan()
        assert audience.shown == without_projects(real.expected(watched=True))
        assert scratch.skipped == {}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", names(replay=True))
def test_replay_watched_now_and_then_counts_what_was_seen(
    name: str, seed: int, real_sets: dict[str, RealSet], tmp_path: Path
) -> None:
    real, rng, unread = real_sets[name], Random(f"{name} {seed}"), set[Path]()
    with home(tmp_path) as scratch:
        audience = Audience(scratch, real)
        for write in real.play(scratch.root):
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
        least, most = (without_projects(real.expected(watched)) for watched in (False, True))
        assert at_most(least, audience.shown)
        assert at_most(audience.shown, most)
        assert scratch.skipped == {}
