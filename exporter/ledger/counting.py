"""What one transaction of the ledger adds: new turns and calls, echoes settled, sums moved."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from .audience import NEVER
from .model import Role, Status, TokenUsage, ToolCall, Turn
from .names import Names
from .pricing import PriceBook
from .series import SeriesKey
from .totals import Sums, bucket_of

HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 86_400_000
_VARIABLES: Final = 500
"""Values that one query looks for at a time."""

_FAILURES: Final = (Status.ERROR, Status.CANCELLED)

Spending = tuple[int, int, int, TokenUsage]
"""Event time in milliseconds, ids of project and rate, and the tokens of one turn."""

Place = tuple[int, int, int]
"""Ids of the project, model and rate that a turn is counted under; rate 0 is unpriced."""


class _Tally:
    """Sums and event times of the turns of one place."""

    __slots__ = ("cached", "first", "input", "last", "output", "thoughts", "tool", "turns")

    def __init__(self) -> None:
        self.turns = self.input = self.cached = self.output = self.thoughts = self.tool = 0
        self.first, self.last = NEVER, 0

    def add(self, usage: TokenUsage, turns: int = 1) -> None:
        self.turns += turns
        self.input += turns * usage.input
        self.cached += turns * usage.cached
        self.output += turns * usage.output
        self.thoughts += turns * usage.thoughts
        self.tool += turns * usage.tool

    def usage(self) -> TokenUsage:
        return TokenUsage(self.input, self.cached, self.output, self.thoughts, self.tool)


class Counting:
    """Counts turns and calls inside an open transaction and keeps the changes beside it.

    Nothing here reaches the totals in memory before the transaction has been committed. New rows
    are written together, which is several times faster than one by one.
    """

    def __init__(self, db: sqlite3.Connection, names: Names, book: PriceBook, now: int) -> None:
        """`now` is in milliseconds; the spending of the hour before it is noted turn by turn."""
        self.sums = Sums()
        self.recent: list[Spending] = []
        """What turns of the last hour cost; negative where a cost is taken back."""
        self.active: dict[int, tuple[int, int]] = {}
        """Project and time of the last turn, by session, of this transaction's turns."""
        self.new_sessions: list[int] = []
        """Projects of the main sessions that had their first turn."""
        self.prices: dict[int, tuple[int, int]] = {}
        """Day and base rate by model, the latest day of each."""
        self.last_turns: dict[int, int] = {}
        """Time of the last turn by project."""
        self.born: dict[SeriesKey, int] = {}
        """Time of the earliest turn of each series that this transaction touched.

        It is never ahead: a point must not have a start that is later than its own time.
        """
        self._db = db
        self._names = names
        self._book = book
        self._now = now
        self._prompts: Counter[tuple[int, int]] = Counter()
        self._tools: dict[tuple[int, int, int], list[int]] = {}
        self._turns: dict[bytes, list[Any]] = {}
        self._calls: dict[tuple[bytes, int], list[int]] = {}
        self._tallies: dict[Place, _Tally] = {}

    def count(
        self, turns: Sequence[Turn], calls: Sequence[ToolCall], all_new: bool = False
    ) -> list[Turn]:
        """Count what the ledger does not know yet; return the turns that are one more reply each.

        With `all_new` nothing is looked up: sqlite3.IntegrityError is raised if something is known.
        """
        known: set[bytes] = set()
        stored: dict[tuple[bytes, int], list[int]] = {}
        if not all_new:
            known.update(
                key for (key,) in self._find("id FROM turn WHERE id", [t.id for t in turns])
            )
            query = "message, call, project, model, tool, status FROM tool_call WHERE message"
            for message, call, *row in self._find(query, list({c.message for c in calls})):
                stored[message, call] = row
        replies = [turn for turn in turns if turn.id not in known and self._turn(turn)]
        for tool_call in calls:
            self._call(tool_call, stored)
        self._write("INSERT" if all_new else "REPLACE")
        return replies

    def reprice(self, now: int) -> None:
        """Give each turn without a rate the one that the price book has for it now, if any.

        The prices for display are looked up again, as of `now` in milliseconds since the epoch.
        """
        unpriced = self._db.execute(
            "SELECT t.id, m.label, time, project, t.model, input, cached, output, thoughts, tool"
            " FROM turn t JOIN model m ON m.id = t.model WHERE rate = 0 AND role != ?",
            (Role.ECHO,),
        ).fetchall()
        for key, name, time, project, model, *counts in unpriced:
            usage = TokenUsage(*counts)
            rate = self._names.rate(self._book.rate(name, time, usage.prompt))
            if rate:
                self._db.execute("UPDATE turn SET rate = ? WHERE id = ?", (rate, key))
                taken = TokenUsage(*(-count for count in usage))
                self.sums.add_usage((project, model, 0), taken, -1)
                self.sums.add_usage((project, model, rate), usage, 1)
                self._spend(time, project, rate, usage)
                self._bear("cost", time, project, model)
        for model, name in self._db.execute("SELECT id, label FROM model").fetchall():
            self._show_price(model, name, now)

    def _find(self, query: str, keys: Sequence[bytes]) -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(keys), _VARIABLES):
            some = keys[start : start + _VARIABLES]
            marks = ", ".join("?" * len(some))
            yield from self._db.execute(f"SELECT {query} IN ({marks})", some)

    def _turn(self, turn: Turn) -> bool:
        """Count a turn that the ledger did not know before this transaction."""
        if turn.id in self._turns:
            return False
        names, usage, time = self._names, turn.usage, turn.time
        main = turn.role is Role.MAIN
        project, model = names.project(turn.project), names.model(turn.model)
        session, first = names.session(turn.session, project, main, time)
        if first:
            self.new_sessions.append(project)
        rate = names.rate(self._book.rate(turn.model, time, usage.prompt))
        echo = turn.echo and self._take_echo(turn.echo)
        if echo:
            first_part, place, fresh = echo
            if fresh:
                self._prompts[place[1], bucket_of(first_part.prompt)] -= 1
                self._prompts[model, bucket_of(usage.prompt)] += 1
            else:
                # Others may have seen the first part already: its place stays, and no kind shrinks.
                # The prompt is the same; how much of it was cached is taken as first reported.
                project, model, rate = place
                usage = TokenUsage(
                    first_part.input, first_part.cached, usage.output, usage.thoughts, usage.tool
                )
        else:
            self._prompts[model, bucket_of(usage.prompt)] += 1
        self._turns[turn.id] = [turn.id, session, project, model, time, *usage, rate, turn.role]
        self._spend(time, project, rate, usage)
        tally = self._tally((project, model, rate))
        tally.add(usage)
        tally.first = min(tally.first, time)
        tally.last = max(tally.last, time)
        if time >= self.active.get(session, (0, 0))[1]:
            self.active[session] = (project, time)
        return not echo

    def _take_echo(self, key: bytes) -> tuple[TokenUsage, Place, bool] | None:
        """Stop counting a message as a reply of its own; None where it was not counted as one.

        Returns its usage, its place in the sums, and whether this transaction counted it.
        """
        row = self._turns.get(key)
        fresh = row is not None
        if row is None:
            stored = self._db.execute("SELECT * FROM turn WHERE id = ?", (key,)).fetchone()
            if stored is None:
                return None
            row = list(stored)
        _, _, project, model, time, *counts, rate, role = row
        if role == Role.ECHO:
            return None
        row[5:] = [0, 0, 0, 0, 0, 0, Role.ECHO]
        if not fresh:
            self._db.execute("REPLACE INTO turn VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        place, usage = (project, model, rate), TokenUsage(*counts)
        self._tally(place).add(usage, -1)
        self._spend(time, project, rate, TokenUsage(*(-count for count in counts)))
        return usage, place, fresh

    def _call(self, call: ToolCall, stored: dict[tuple[bytes, int], list[int]]) -> None:
        """Count a tool call unless its key is known; a known one may still fail."""
        key = (call.message, call.call)
        row = self._calls.get(key) or stored.get(key)
        new = int(row is None)
        if row is None:
            names = self._names
            project, model = names.project(call.project), names.model(call.model)
            row = [project, model, names.tool(call.tool), call.status]
        elif row[3] in _FAILURES or call.status not in _FAILURES:
            return  # a counter never falls, so only a change to a failure can be followed
        row[3] = call.status
        self._calls[key] = row
        project, model, tool, status = row
        tally = self._tools.setdefault((project, model, tool), [0, 0, 0, NEVER])
        tally[0] += new
        tally[1] += status == Status.ERROR
        tally[2] += status == Status.CANCELLED
        tally[3] = min(tally[3], call.time)

    def _write(self, verb: str) -> None:
        """Write the new rows, and bring the tallies into the sums."""
        # In the order of their keys, as the table keeps them.
        self._db.executemany(
            "INSERT INTO turn VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [self._turns[key] for key in sorted(self._turns)],
        )
        self._db.executemany(
            f"{verb} INTO tool_call VALUES (?, ?, ?, ?, ?, ?)",
            [(*key, *row) for key, row in sorted(self._calls.items())],
        )
        for (model, bucket), turns in self._prompts.items():
            self.sums.add_prompt(model, bucket, turns)
        for (project, model, tool), (calls, errors, cancellations, first) in self._tools.items():
            self.sums.add_tool((project, model, tool), calls, errors, cancellations)
            self._bear("tool", first, project, model, tool)
        for (project, model, rate), tally in self._tallies.items():
            usage = tally.usage()
            self.sums.add_usage((project, model, rate), usage, tally.turns)
            if not rate:
                self.sums.add_unpriced((project, model), usage.total)
            if tally.first == NEVER:
                continue  # only an echo was taken away here
            self.last_turns[project] = max(tally.last, self.last_turns.get(project, 0))
            if not tally.turns:
                continue  # an echo gave way to the whole reply: no series is born of that
            self._bear("usage", tally.first, project, model)
            self._bear("prompt", tally.first, 0, model)
            self._bear("sessions", tally.first, project)
            if not rate and usage.total:
                self._bear("unpriced", tally.first, project, model)
            if rate:
                self._bear("cost", tally.first, project, model)
                self._show_price(model, self._names.model_label(model), tally.last)

    def _tally(self, place: Place) -> _Tally:
        tally = self._tallies.get(place)
        if tally is None:
            tally = self._tallies[place] = _Tally()
        return tally

    def _spend(self, time: int, project: int, rate: int, usage: TokenUsage) -> None:
        if rate:
            self.sums.add_spend(time, project, rate, usage)
            if time > self._now - HOUR_MS:
                self.recent.append((time, project, rate, usage))

    def _show_price(self, model: int, name: str, time: int) -> None:
        day = time // _DAY_MS
        if day > self.prices.get(model, (-1, 0))[0]:
            rate = self._names.rate(self._book.base_rate(name, time))
            if rate:
                self.prices[model] = (day, rate)

    def _bear(self, family: str, time: int, project: int, model: int = 0, tool: int = 0) -> None:
        key = (family, project, model, tool)
        self.born[key] = min(time, self._now, self.born.get(key, NEVER))
