"""A home that lives: days of history, and conversations that go on while it is looked at."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from typing import Final

from .chat import Chat
from .home import chats, write_home
from .plan import Plan
from .truth import Truth, Write

_DAYS: Final = 14
_BUSY: Final = (timedelta(days=2, hours=3), timedelta(hours=6), timedelta(hours=2))
"""How long ago the busy hours began: a spike, and what is recent at any time of the day."""
_AT_ONCE: Final = 4
"""Conversations that go on at the same time; each has a turn every 20 seconds or so."""
_UNDER_WAY_MS: Final = 60_000
"""The first of them began about so long ago, so that a turn comes within seconds."""
_TURNS: Final = (8, 40)
_OUTPUT: Final = 2_000.0


class LiveHome:
    """Writes `home`/.gemini as several busy developers would; `clock` returns milliseconds."""

    def __init__(self, home: Path, clock: Callable[[], int], seed: int = 1) -> None:
        end = datetime.fromtimestamp(clock() / 1000, UTC)
        self.root = home / ".gemini"
        self._plan = Plan(
            end,
            projects=6,
            sessions=120,
            subagents=24,
            turns=4_000,
            days=_DAYS,
            seed=seed,
            turn_bytes=6_000,
            busy=tuple(end - ago for ago in _BUSY),
        )
        self._home = home
        self._clock = clock
        self._rng = Random(seed)
        self._projects = list(
            {chat.project.slug: chat.project for chat in chats(self._plan)}.values()
        )
        self._going: list[tuple[int, int, Write, Iterator[Write]]] = []
        self._started = 0

    def write_past(self) -> Truth:
        """Write the history up to now, and return what a reader must find in it."""
        return write_home(self._home, self._plan)

    def run(self, stop: threading.Event) -> None:
        """Write each record when its time has come, until stopped."""
        while not stop.wait(max(0.0, (self.next_at() - self._clock()) / 1000)):
            self.write_due()

    def next_at(self) -> int:
        """Return when the next record is written, in milliseconds since the epoch."""
        while len(self._going) < _AT_ONCE:
            self._begin()
        return self._going[0][0]

    def write_due(self) -> list[Write]:
        """Append the records whose time has come, and return them."""
        written: list[Write] = []
        while self.next_at() <= self._clock():
            _, number, write, rest = heappop(self._going)
            path = self.root / write.path
            path.parent.mkdir(parents=True, exist_ok=True)
            # One write call, as Gemini CLI appends its lines.
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(file, write.line)
            finally:
                os.close(file)
            written.append(write)
            self._push(number, rest)
        return written

    def _begin(self) -> None:
        rng, clock = self._rng, self._clock
        self._started += 1
        start = clock() + rng.randrange(5_000)
        if self._started <= _AT_ONCE:
            start -= _UNDER_WAY_MS
        turns = rng.randint(*_TURNS)
        agents = {turns // 2: 5} if rng.random() < 0.3 else {}
        own = Random(rng.getrandbits(64))
        chat = Chat(own, "jsonl", rng.choice(self._projects), start, turns, _OUTPUT, agents)
        self._push(self._started, chat.writes())

    def _push(self, number: int, writes: Iterator[Write]) -> None:
        write = next(writes, None)
        if write is not None:
            heappush(self._going, (write.at, number, write, writes))
