"""What is known of the ledger without reading it: the sums, and what else outputs show."""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from typing import Final

from .counting import Counting, SeriesKey
from .totals import (
    Activity,
    Naming,
    Snapshot,
    Sums,
    pair_totals,
    prompt_sizes,
    tool_totals,
    unpriced_turns,
)

RECENT_MS: Final = 5 * 60_000
"""A session is active for this long after its last turn."""

_KEY_WIDTHS: Final = {"usage_total": 3, "tool_total": 3, "prompt_total": 2, "unpriced_total": 2}


class Memory:
    """Loaded once from the ledger, then moved after each committed transaction.

    One thread absorbs changes, any thread may take a snapshot. Times are milliseconds since the
    epoch.
    """

    def __init__(self, db: sqlite3.Connection, naming: Naming, now: int) -> None:
        self._mutex = threading.Lock()
        self._naming = naming
        self.generation = 0
        self._sums = Sums()
        for name, table in self._sums.tables():
            width = _KEY_WIDTHS[name]
            for row in db.execute(f"SELECT * FROM {name}"):
                table[row[:width]] = row[width:]
        self._last_turns: dict[int, int] = dict(
            db.execute("SELECT id, last_turn FROM project WHERE last_turn > 0")
        )
        self._sessions = Counter(
            dict(db.execute("SELECT project, count(*) FROM session WHERE main GROUP BY project"))
        )
        lately = db.execute(
            "SELECT id, project, last_turn FROM session WHERE last_turn > ?", (now - RECENT_MS,)
        )
        self._recent = {key: (project, time) for key, project, time in lately}
        self.prices: dict[int, tuple[int, int]] = {
            model: (day, rate) for model, day, rate in db.execute("SELECT * FROM price")
        }
        self.born: dict[SeriesKey, int] = {
            (family, project, model, tool): born
            for family, project, model, tool, born in db.execute("SELECT * FROM series")
        }

    def absorb(
        self, counting: Counting, born: dict[SeriesKey, int], naming: Naming, now: int
    ) -> None:
        """Take over what a committed transaction has changed."""
        with self._mutex:
            self.generation += 1
            self._naming = naming
            self._sums.merge(counting.sums)
            self._sessions.update(counting.new_sessions)
            self.born.update(born)
            for session, (project, time) in counting.active.items():
                self._recent[session] = (project, time)
            for project, time in counting.last_turns.items():
                self._last_turns[project] = max(time, self._last_turns.get(project, 0))
            for session, (_, time) in list(self._recent.items()):
                if time <= now - RECENT_MS:
                    del self._recent[session]
            for model, price in counting.prices.items():
                if price[0] >= self.prices.get(model, price)[0]:
                    self.prices[model] = price

    def snapshot(self) -> Snapshot:
        """Return the totals of this moment by label."""
        with self._mutex:
            generation = self.generation
            names = self._naming
            sums = self._sums.frozen()
            last_turns = dict(self._last_turns)
            sessions = Counter(self._sessions)
            recent = list(self._recent.values())
            prices = dict(self.prices)
        turns_of: dict[int, list[int]] = {}
        for project, time in recent:
            turns_of.setdefault(project, []).append(time)
        activity: dict[str, Activity] = {}
        for project, last in last_turns.items():
            label = names.project[project]
            old = activity.get(label, Activity(0, 0, ()))
            activity[label] = Activity(
                old.sessions + sessions[project],
                max(old.last_turn, last),
                (*old.recent, *turns_of.get(project, ())),
            )
        return Snapshot(
            generation,
            pair_totals(sums, names),
            tool_totals(sums, names),
            prompt_sizes(sums, names),
            activity,
            {names.model[model]: names.rate[rate] for model, (_, rate) in prices.items()},
            unpriced_turns(sums, names),
            sum(row[0] for row in sums.usage.values()),
        )
