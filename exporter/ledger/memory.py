"""What is known of the ledger without reading it: the sums, and what else outputs show."""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from typing import Final

from .audience import NEVER, Audience
from .budgets import Period, Span
from .counting import HOUR_MS, Counting
from .series import Birth, Births
from .spend import Spend
from .totals import (
    Activity,
    Naming,
    SeriesName,
    Snapshot,
    Spending,
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
        self._spend = Spend(db, naming.rate, now, max(self._last_turns.values(), default=0))
        rows = db.execute("SELECT family, project, model, tool, born, shown FROM series")
        births = (Birth((*key,), born, Audience(shown)) for *key, born, shown in rows)
        self.births = Births(births, naming)

    def absorb(self, counting: Counting, births: Iterable[Birth], naming: Naming, now: int) -> None:
        """Take over what a committed transaction has changed."""
        with self._mutex:
            self.generation += 1
            self._naming = naming
            self._sums.merge(counting.sums)
            self._spend.absorb(counting.sums.spend, counting.recent, naming.rate, now)
            self.births.absorb(births, naming)
            self._sessions.update(counting.new_sessions)
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
            held = {audience: frozenset(held) for audience, held in self.births.held.items()}
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
            held,
        )

    def delivered(self, audience: Audience, names: Container[SeriesName], now: int) -> bool:
        """Note that these series were delivered as 0; return whether a hold began with that."""
        with self._mutex:
            held = self.births.held[audience]
            begun = [name for name, since in held.items() if since == NEVER and name in names]
            held.update(dict.fromkeys(begun, now))
        return bool(begun)

    def starts(self) -> dict[SeriesName, int]:
        """Return the time of the first turn of each series."""
        with self._mutex:
            return dict(self.births.starts)

    def spending(self, spans: Mapping[Period, Span], now: int) -> Spending:
        """Return what was spent in the periods and in the hour before `now`."""
        with self._mutex:
            names = self._naming.project
            periods = self._spend.in_periods(spans)
            last_hour = self._spend.in_last_hour(now)
            lately = min(now - HOUR_MS, *(span.start for span in spans.values()))
            active = [key for key, last in self._last_turns.items() if last >= lately]
        by_period: Counter[tuple[Period, str]] = Counter()
        by_hour: Counter[str] = Counter()
        for project in active:
            label = names[project]
            by_hour[label] += last_hour.get(project, 0)
            for period in spans:
                by_period[period, label] += periods.get((period, project), 0)
        return Spending(by_period, by_hour)
