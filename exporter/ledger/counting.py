"""What one transaction of the ledger adds: new turns and calls, echoes settled, sums moved."""

from __future__ import annotations

import sqlite3
from typing import Final

from .model import Role, Status, TokenUsage, ToolCall, Turn
from .names import Names
from .pricing import PriceBook
from .totals import Sums, UsageKey

_DAY_MS: Final = 86_400_000

_INSERT_CALL: Final = "INSERT INTO tool_call VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_FAILURES: Final = (Status.ERROR, Status.CANCELLED)

SeriesKey = tuple[str, int, int, int]
"""Family of series that are born together, and the ids of project, model and tool (0: none)."""


class Counting:
    """Counts turns and calls inside an open transaction and keeps the changes beside it.

    Nothing here reaches the totals in memory before the transaction has been committed.
    """

    def __init__(self, db: sqlite3.Connection, names: Names, book: PriceBook) -> None:
        self.sums = Sums()
        self.active: dict[int, tuple[int, int]] = {}
        """Project and time of the last turn, by session, of this transaction's turns."""
        self.new_sessions: list[int] = []
        """Projects of the main sessions that had their first turn."""
        self.prices: dict[int, tuple[int, int]] = {}
        """Day and base rate by model, the latest day of each."""
        self.born: dict[SeriesKey, int] = {}
        """Time of the earliest turn of each series that this transaction touched."""
        self._db = db
        self._names = names
        self._book = book
        self._fresh: set[bytes] = set()

    def turn(self, turn: Turn) -> bool:
        """Count a turn unless its message id is known; tell whether one more reply was counted."""
        names = self._names
        if self._db.execute("SELECT 1 FROM turn WHERE id = ?", (turn.id,)).fetchone():
            return False
        project, model = names.project(turn.project), names.model(turn.model)
        session, first = names.session(turn.session, project, turn.role is Role.MAIN, turn.time)
        if first:
            self.new_sessions.append(project)
            self._bear("sessions", turn.time, project)
        rate = names.rate(self._book.rate(turn.model, turn.time, turn.usage.prompt))
        echo = turn.echo and self._take_echo(turn.echo)
        usage = turn.usage
        if echo:
            first_part, place, fresh = echo
            if fresh:
                self.sums.add_prompt(place[1], first_part.prompt, -1)
                self.sums.add_prompt(model, usage.prompt)
            else:
                # Others may have seen the first part already: its place stays, and no kind shrinks.
                # The prompt is the same; how much of it was cached is taken as first reported.
                project, model, rate = place
                usage = TokenUsage(
                    first_part.input, first_part.cached, usage.output, usage.thoughts, usage.tool
                )
        else:
            self.sums.add_prompt(model, usage.prompt)
        self._db.execute(
            "INSERT INTO turn VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (turn.id, session, project, model, turn.time, *usage, rate, turn.role),
        )
        self._fresh.add(turn.id)
        self._add((project, model, rate), usage)
        self._mark(session, project, model, rate, turn)
        return not echo

    def call(self, call: ToolCall) -> None:
        """Count a tool call unless its key is known; a known one may still turn out to have failed."""
        names = self._names
        project, model = names.project(call.project), names.model(call.model)
        tool = names.tool(call.tool)
        row = (call.message, call.call, project, model, tool, call.status)
        calls = self._db.execute(_INSERT_CALL, row).rowcount
        if not calls:
            # A counter never falls, so only a change from success to failure can be followed.
            key = (call.message, call.call)
            where = "WHERE message = ? AND call = ?"
            project, model, tool, known = self._db.execute(
                f"SELECT project, model, tool, status FROM tool_call {where}", key
            ).fetchone()
            if known in _FAILURES or call.status not in _FAILURES:
                return
            self._db.execute(f"UPDATE tool_call SET status = ? {where}", (call.status, *key))
        errors, cancellations = (int(call.status is failure) for failure in _FAILURES)
        self.sums.add_tool((project, model, tool), calls, errors, cancellations)
        self._bear("tool", call.time, project, model, tool)

    def reprice(self, now: int) -> None:
        """Give each turn without a rate the one that the price book has for it now, if any.

        The prices for display are looked up again, as of `now` in milliseconds since the epoch.
        """
        unpriced = self._db.execute(
            "SELECT t.id, m.label, t.time, t.project, t.model, input, cached, output, thoughts, tool"
            " FROM turn t JOIN model m ON m.id = t.model WHERE rate = 0 AND role != ?",
            (Role.ECHO,),
        ).fetchall()
        for key, name, time, project, model, *counts in unpriced:
            usage = TokenUsage(*counts)
            rate = self._names.rate(self._book.rate(name, time, usage.prompt))
            if rate:
                self._db.execute("UPDATE turn SET rate = ? WHERE id = ?", (rate, key))
                self.sums.add_usage((project, model, 0), usage, -1)
                self.sums.add_usage((project, model, rate), usage)
                self._bear("cost", time, project, model)
        for model, name in self._db.execute("SELECT id, label FROM model").fetchall():
            self._show_price(model, name, now)

    def _take_echo(self, key: bytes) -> tuple[TokenUsage, UsageKey, bool] | None:
        """Stop counting a message as a reply of its own; None where it was not counted as one.

        Returns its usage, its place in the sums, and whether this transaction counted it.
        """
        row = self._db.execute(
            "SELECT project, model, rate, input, cached, output, thoughts, tool FROM turn"
            " WHERE id = ? AND role != ?",
            (key, Role.ECHO),
        ).fetchone()
        if row is None:
            return None
        self._db.execute(
            "UPDATE turn SET role = ?, input = 0, cached = 0, output = 0, thoughts = 0, tool = 0,"
            " rate = 0 WHERE id = ?",
            (Role.ECHO, key),
        )
        place, usage = row[:3], TokenUsage(*row[3:])
        self._add(place, usage, -1)
        return usage, place, key in self._fresh

    def _add(self, place: UsageKey, usage: TokenUsage, turns: int = 1) -> None:
        self.sums.add_usage(place, usage, turns)
        if not place[2]:
            self.sums.add_unpriced(place[:2], turns * usage.total)

    def _mark(self, session: int, project: int, model: int, rate: int, turn: Turn) -> None:
        """Note everything about a counted turn that is not a sum."""
        time = turn.time
        if time >= self.active.get(session, (0, 0))[1]:
            self.active[session] = (project, time)
        self._bear("usage", time, project, model)
        self._bear("prompt", time, 0, model)
        if rate:
            self._bear("cost", time, project, model)
            self._show_price(model, turn.model, time)

    def _show_price(self, model: int, name: str, time: int) -> None:
        day = time // _DAY_MS
        if day > self.prices.get(model, (-1, 0))[0]:
            rate = self._names.rate(self._book.base_rate(name, time))
            if rate:
                self.prices[model] = (day, rate)

    def _bear(self, family: str, time: int, project: int, model: int = 0, tool: int = 0) -> None:
        key = (family, project, model, tool)
        if time < self.born.get(key, 1 << 62):
            self.born[key] = time
