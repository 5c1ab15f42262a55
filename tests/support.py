"""Small things that many tests need: a clock set by hand, and a collector on a scratch home."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from exporter.ledger.labels import LabelRules
from exporter.ledger.pricing import PriceBook
from exporter.ledger.stats import Stats
from exporter.ledger.store import Ledger
from exporter.ledger.totals import Snapshot
from exporter.settings import Settings
from exporter.sources import ConfigError, load
from exporter.transcripts.collector import Collector
from exporter.transcripts.files import ERROR_REASONS
from exporter.transcripts.reader import Reader
from exporter.transcripts.shapes import Reason
from tests.real import Expected, ToolCount, Usage

BOOK = PriceBook()
"""Shared, since it remembers the published prices that it has looked up."""

OPEN_ERRORS = [
    (errno.EACCES, "permission"),
    (errno.EPERM, "permission"),
    (errno.EIO, "io"),
    (errno.ESTALE, "stale"),
    (errno.ELOOP, "link"),
    (errno.EMFILE, "other"),
]
"""What opening a transcript may fail with, and the reason it is counted by."""


def dumps(value: Any) -> bytes:
    """Return JSON as the CLI writes a line, without the newline."""
    return json.dumps(value, separators=(",", ":")).encode()


def millis(text: str) -> int:
    """Return an ISO timestamp in milliseconds since the epoch."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


class Clock:
    """A clock in milliseconds that stands still until it is set."""

    def __init__(self, now: str = "2026-11-30T21:00:00+00:00") -> None:
        self.now = millis(now)

    def __call__(self) -> int:
        return self.now


class Home:
    """A scratch root with a ledger of its own and a collector, restarted at will."""

    def __init__(
        self, folder: Path, root: Path | None = None, reader: Reader | None = None
    ) -> None:
        self.clock = Clock()
        self.root = root or folder / "gemini"
        self.path = folder / "ledger.db"
        self.book = BOOK
        self.rules = LabelRules()
        self.reader = reader
        self.start()

    def start(self) -> None:
        """Open the ledger, as the program does at its start."""
        self.ledger = Ledger(self.path, self.book, self.clock, self.rules)
        self.stats = Stats(self.clock.now / 1000, Reason, ERROR_REASONS)
        self.collector = Collector(
            [str(self.root)], self.ledger, self.stats, self.clock, reader=self.reader
        )

    def restart(self) -> None:
        """End and start again."""
        self.close()
        self.start()

    def close(self) -> None:
        """End, as the program does."""
        self.collector.close()
        self.ledger.close()

    def scan(self) -> Snapshot:
        """Take one look at everything and return the totals."""
        self.collector.scan()
        return self.ledger.snapshot()

    def chats(self, project: str = "shop", parent: str = "") -> Path:
        """Return a project's chats folder, made if need be."""
        folder = self.root / "tmp" / project / "chats" / parent
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def write(self, *lines: Any, name: str = "session-a.jsonl", project: str = "shop") -> Path:
        """Append lines to a transcript: bytes as they are, anything else as JSON and a newline."""
        path = self.chats(project) / name
        with path.open("ab") as file:
            file.writelines(
                line if isinstance(line, bytes) else dumps(line) + b"\n" for line in lines
            )
        return path

    @property
    def turns(self) -> int:
        """Turns of all projects and models."""
        return sum(total.turns for total in self.ledger.snapshot().pairs.values())

    @property
    def skipped(self) -> dict[str, int]:
        """Reasons that have been counted."""
        return {reason: count for reason, count in self.stats.skipped.items() if count}


@contextmanager
def home(folder: Path, root: Path | None = None, reader: Reader | None = None) -> Iterator[Home]:
    """A scratch home whose ledger is closed at the end."""
    scratch = Home(folder, root, reader)
    try:
        yield scratch
    finally:
        scratch.close()


_audits: list[list[tuple[str, str]]] = []
_AUDITED = ("open", "os.listdir", "os.scandir")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _audits and event in _AUDITED and isinstance(arguments[0], str | bytes):
        _audits[-1].append((event, os.fsdecode(arguments[0])))


@cache
def _hook() -> None:
    """Set the hook, which Python has no way to take off, when it is first needed."""
    sys.addaudithook(_audit)


@contextmanager
def audited() -> Iterator[list[tuple[str, str]]]:
    """Note what is opened and listed meanwhile, by whomever: the events `open` and `os.scandir`."""
    _hook()
    _audits.append([])
    try:
        yield _audits[-1]
    finally:
        _audits.pop()


def counted(snapshot: Snapshot) -> Expected:
    """Return totals in the form of the truth, to be compared with it."""
    return Expected(
        {key: Usage(total.turns, *total.tokens) for key, total in snapshot.pairs.items()},
        {
            key: ToolCount(total.calls, total.errors, total.cancellations)
            for key, total in snapshot.tools.items()
        },
    )


def summed(parts: Iterable[Expected]) -> Expected:
    """Return the sum of several truths, for all projects together."""
    usage: dict[tuple[str, str], Usage] = defaultdict(Usage)
    tools: dict[tuple[str, str, str], ToolCount] = defaultdict(ToolCount)
    for part in parts:
        for (_, model), turns in part.usage.items():
            usage["", model] += turns
        for (_, model, tool), calls in part.tools.items():
            tools["", model, tool] += calls
    return Expected(dict(usage), dict(tools))


def gemini(
    id: str = "g-1",
    input: int | None = 100,
    output: int = 10,
    *,
    cached: int = 0,
    thoughts: int = 0,
    tool: int = 0,
    model: str | None = "gemini-2.5-flash",
    time: str = "2026-11-30T20:00:00.000Z",
    calls: list[tuple[str, str, str]] | None = None,
) -> dict[str, Any]:
    """Return a reply as the CLI records it; `input=None` records it without tokens."""
    record: dict[str, Any] = {"id": id, "timestamp": time, "type": "gemini", "content": ""}
    if input is not None:
        record["tokens"] = {
            "input": input,
            "output": output,
            "cached": cached,
            "thoughts": thoughts,
            "tool": tool,
            "total": input + output + thoughts + tool,
        }
    if model is not None:
        record["model"] = model
    if calls is not None:
        record["toolCalls"] = [
            {"id": call, "name": name, "args": {}, "status": status} for call, name, status in calls
        ]
    return record


def user(id: str = "u-1", time: str = "2026-11-30T20:00:00.000Z") -> dict[str, Any]:
    """Return a user message."""
    return {"id": id, "timestamp": time, "type": "user", "content": [{"text": "hello"}]}


def header(session: str = "5e551001-0000", kind: str = "main") -> dict[str, Any]:
    """Return the first line of a .jsonl transcript."""
    return {
        "sessionId": session,
        "projectHash": "0" * 64,
        "startTime": "2026-11-30T20:00:00.000Z",
        "lastUpdated": "2026-11-30T20:00:00.000Z",
        "kind": kind,
    }


def settings(*argv: str, environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings in force for a command line and an environment, both as on Linux."""
    return load(argv, environ or {}, "linux")[1]


def refusal(*argv: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the one line by which settings are refused; fail if they are not."""
    with pytest.raises(ConfigError) as caught:
        load(argv, environ or {}, "linux")
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message
