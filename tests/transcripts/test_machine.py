"""Anything may happen to transcripts, in any order: what was readable is counted, and once."""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from exporter.ledger.model import Batch, Turn
from exporter.transcripts.reader import Reader
from tests.support import Home, dumps, gemini, header, user
from tests.transcripts.test_counting import assert_never_falls

pytestmark = pytest.mark.timeout(300)  # a failure is made small first, which takes its time

LINES = (
    "shop/chats/session-a.jsonl",
    "shop/chats/session-b.jsonl",
    "shop/chats/parent/x.jsonl",
    f"{'9f3a' * 16}/chats/session-a.jsonl",
)
DOCUMENTS = ("shop/chats/session-a.json", f"{'9f3a' * 16}/chats/session-c.json")

lines = st.sampled_from(LINES)
shares = st.sampled_from([0, 0.1, 0.3, 0.5, 0.7, 0.9, 1])
documents = st.sampled_from(DOCUMENTS)
replies = st.integers(0, 25)
"""Reply number n has 2 ** n prompt tokens, so that their sum tells which ones were counted."""

wakes = st.sampled_from(["sleep", "look", "scan"])
"""What the exporter does when something was written."""

_REPLY = re.compile(rb'\{"id":"g-')


class Crash(BaseException):
    """The end of the process in the middle of a commit."""


class Seen:
    """Replies that were counted, or may have been: those with tokens, and those with a call."""

    def __init__(self) -> None:
        self.turns: set[int] = set()
        self.calls: set[int] = set()

    def add(self, message: dict[str, Any]) -> None:
        number = int(message["id"].removeprefix("g-"))
        if message.get("tokens"):
            self.turns.add(number)
        if message.get("toolCalls"):
            self.calls.add(number)

    def update(self, other: Seen) -> None:
        self.turns |= other.turns
        self.calls |= other.calls


class Transcripts(RuleBasedStateMachine):
    """A home and its collector, beside a model of what the collector was able to see.

    What a file held when it was deleted or replaced may be counted, since it may still be open, and
    what a file held at a look must be.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(mkdtemp())
        self.home = Home(self.folder, reader=Reader(buffer=1 << 14))
        self.top = self.home.root / "tmp"
        self.before = self.home.ledger.snapshot()
        self.must, self.may = Seen(), Seen()
        self.known: set[Path] = set()
        self.torn: dict[Path, bytes] = {}

    def teardown(self) -> None:
        self.home.close()
        shutil.rmtree(self.folder)

    @initialize()
    def begin(self) -> None:
        self.scan()

    # What is written

    @rule(name=lines, number=replies, what=st.sampled_from(["", "", "calls", "unset"]), wake=wakes)
    def append(self, name: str, number: int, what: str, wake: str) -> None:
        """A message is written, for the first time or again."""
        calls = what == "calls" and self._is_whole(name)
        self._append(name, dumps(reply(number, calls, what == "unset")) + b"\n")
        self._wakes(wake, name)

    @rule(name=lines, numbers=st.lists(replies, min_size=1, max_size=3), wake=wakes)
    def append_checkpoint(self, name: str, numbers: list[int], wake: str) -> None:
        if self._is_whole(name):
            messages = [reply(number) for number in numbers]
            self._append(name, dumps({"$set": {"messages": messages}}) + b"\n")
            self._wakes(wake, name)

    @rule(name=lines, line=st.sampled_from([user(), header(), {"$rewindTo": "g-1"}, 7]))
    def append_other(self, name: str, line: Any) -> None:
        self._append(name, dumps(line) + b"\n")

    @rule(name=lines, number=replies, share=shares, prompt=st.booleans(), wake=wakes)
    def append_torn(self, name: str, number: int, share: float, prompt: bool, wake: str) -> None:
        line = dumps(user() if prompt else reply(number)) + b"\n"
        cut = int(share * (len(line) - 1))
        self._append(name, line[:cut])
        self.torn[self.top / name] = line[cut:]
        self._wakes(wake, name)

    @rule(wake=wakes)
    def complete(self, wake: str) -> None:
        for path, rest in list(self.torn.items()):
            name = str(path.relative_to(self.top))
            self._append(name, rest)
            self._wakes(wake, name)

    @rule(name=documents, numbers=st.lists(replies, max_size=4), cut=st.booleans(), wake=wakes)
    def rewrite(self, name: str, numbers: list[int], cut: bool, wake: str) -> None:
        """A document is written anew, and may be seen cut off."""
        messages = [user(), *(reply(number, number % 2 == 0) for number in numbers)]
        data = dumps({**header(), "messages": messages})
        self._write(self.top / name, data[:100] if cut else data)
        self._wakes(wake, name)

    @rule(name=lines, share=shares, wake=wakes)
    def truncate(self, name: str, share: float, wake: str) -> None:
        path = self.top / name
        if path.exists():
            data = path.read_bytes()
            self._write(path, data[: int(share * len(data))])
            self._wakes(wake, name)

    @rule(name=lines, numbers=st.lists(replies, max_size=4), wake=wakes)
    def replace(self, name: str, numbers: list[int], wake: str) -> None:
        """A transcript is written anew, in place, and may be longer than it was."""
        data = b"".join(dumps(reply(number)) + b"\n" for number in numbers)
        self._write(self.top / name, data)
        self._wakes(wake, name)

    # What happens to files

    @rule(names=st.permutations(LINES) | st.permutations(DOCUMENTS), keep=st.booleans())
    def copy_or_rename(self, names: list[str], keep: bool) -> None:
        source, target = (self.top / name for name in names[:2])
        if not source.exists():
            return
        self._leaves(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        if keep:
            target.unlink(missing_ok=True)
            shutil.copyfile(source, target)
            self._stamp(target)
        else:
            self._leaves(source)
            source.replace(target)

    @rule(name=lines | documents)
    def delete(self, name: str) -> None:
        self._leaves(self.top / name)
        (self.top / name).unlink(missing_ok=True)

    @rule(project=st.sampled_from(["shop", "9f3a" * 16, "."]))
    def delete_folder(self, project: str) -> None:
        folder = self.top / project
        for path in self._paths():
            if path.is_relative_to(folder):
                self._leaves(path)
        shutil.rmtree(folder, ignore_errors=True)

    # What the exporter does

    @rule()
    def scan(self) -> None:
        self.home.clock.now += 10_000
        self.home.collector.scan()
        self.known = {path.parent for path in self._paths()}
        self._sees(self._paths())

    def look(self, name: str) -> None:
        """An event tells of one file, in a folder that the last scan has found."""
        path = self.top / name
        if path.parent in self.known:
            self.home.collector.look([str(path)])
            self._sees([path])

    @rule()
    def restart(self) -> None:
        self.home.restart()
        self.known.clear()
        self._check()

    @rule()
    def crash(self) -> None:
        """The process dies when it is about to commit what it has read."""

        def record(batch: Batch) -> list[Turn]:
            raise Crash

        self.home.ledger.record = record  # type: ignore[method-assign]
        with suppress(Crash):
            self.home.collector.scan()
        self.restart()

    # The model

    def _wakes(self, wake: str, name: str) -> None:
        if wake == "scan":
            self.scan()
        elif wake == "look":
            self.look(name)

    def _is_whole(self, name: str) -> bool:
        """Tell whether what is appended to a file begins a line."""
        path = self.top / name
        return not path.exists() or path.read_bytes()[-1:] in (b"", b"\n")

    def _append(self, name: str, data: bytes) -> None:
        path = self.top / name
        old = path.read_bytes() if path.exists() else None
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(dumps(header()) + b"\n" + data if old is None else data)
        self.torn.pop(path, None)
        self._stamp(path)

    def _write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.torn.pop(path, None)
        self._stamp(path)

    def _stamp(self, path: Path) -> None:
        """Give each change a time of its own, however fast they follow each other."""
        self.home.clock.now += 1_000
        os.utime(path, ns=(self.home.clock.now * 1_000_000,) * 2)

    def _leaves(self, path: Path) -> None:
        """A file is about to go; it may be open, and then it is read to its end."""
        self.may.update(readable(path))
        self.torn.pop(path, None)

    def _paths(self) -> list[Path]:
        return [self.top / name for name in (*LINES, *DOCUMENTS) if (self.top / name).exists()]

    def _sees(self, paths: list[Path]) -> None:
        for path in paths:
            seen = readable(path)
            self.must.update(seen)
            self.may.update(seen)
        self._check()

    def _check(self) -> None:
        snapshot = self.home.ledger.snapshot()
        assert_never_falls(self.before, snapshot)
        self.before = snapshot
        tokens = sum(total.tokens.input for total in snapshot.pairs.values())
        turns = {number for number in range(64) if tokens >> number & 1}
        assert self.must.turns <= turns <= self.may.turns
        assert self.home.turns == len(turns), "each was counted once"
        calls = sum(tool.calls for tool in snapshot.tools.values())
        assert len(self.must.calls) <= calls <= len(self.may.calls)


def reply(number: int, calls: bool = False, unset: bool = False) -> dict[str, Any]:
    tools = [("c-1", "ls", "success")] if calls else None
    return gemini(f"g-{number}", None if unset else 1 << number, 1, calls=tools)


def readable(path: Path) -> Seen:
    """Return what a reader must find in one transcript, told by simpler means than its own."""
    seen = Seen()
    if not path.exists():
        return seen
    data = path.read_bytes()
    if path.suffix == ".json":
        try:
            messages = json.loads(data)["messages"]
        except ValueError:
            return seen
        for message in messages:
            if message["type"] == "gemini":
                seen.add(message)
        return seen
    for line in data.split(b"\n")[:-1]:
        for message in _messages(line):
            seen.add(message)
    return seen


def _messages(line: bytes) -> list[dict[str, Any]]:
    """Return the replies of one line, or the last one of a line that others are glued to."""
    try:
        record = json.loads(line)
    except ValueError:
        starts = [match.start() for match in _REPLY.finditer(line)]
        return _messages(line[starts[-1] :]) if starts and starts[-1] > 0 else []
    if not isinstance(record, dict):
        return []
    patch = record.get("$set", {}).get("messages", [])
    return [record] if record.get("type") == "gemini" else patch


Transcripts.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestTranscripts = Transcripts.TestCase
