"""What was spent lately by event time: in calendar periods, and in the last hour."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from .budgets import SLOT_MS, Period, Span
from .counting import HOUR_MS, Spending
from .model import Rate, TokenUsage
from .totals import SpendKey

_AHEAD_MS: Final = 5 * 60_000
"""A turn may be this far ahead of the clock; one beyond is from before the clock was set back."""
_KEPT_MS: Final = 40 * 86_400_000
"""Longer than any period; what is older stays in the ledger only."""

_COUNTS: Final = "input, cached, output, thoughts, tool"


class Spend:
    """Costs in pico-USD by slot and project id, and turn by turn for the last hour.

    Loaded from the ledger, then moved after each committed transaction. Times are in milliseconds
    since the epoch.
    """

    def __init__(
        self, db: sqlite3.Connection, rates: Mapping[int, Rate], now: int, last_turn: int
    ) -> None:
        """`last_turn` is the time of the latest turn, which may spare a look at all of them."""
        self._db = db
        self._now = now
        self._load(rates, now, last_turn)

    def absorb(
        self,
        slots: Mapping[SpendKey, Sequence[int]],
        turns: Iterable[Spending],
        rates: Mapping[int, Rate],
        now: int,
    ) -> None:
        """Take over what a committed transaction has added."""
        if now < self._now:
            # The clock was set back, so what was dropped as too old may count once more.
            self._load(rates, now, last_turn=now)
        else:
            self._add_slots(slots.items(), rates, now)
            self._add_turns(turns, rates, now)
        self._now = now

    def in_periods(self, spans: Mapping[Period, Span]) -> dict[tuple[Period, int], int]:
        """Return what was spent in each period by project id, in pico-USD."""
        spent: dict[tuple[Period, int], int] = {}
        bounds = [
            (period, span.start // SLOT_MS, span.end // SLOT_MS) for period, span in spans.items()
        ]
        for (slot, project), cost in self._slots.items():
            for period, start, end in bounds:
                if start <= slot < end:
                    spent[period, project] = spent.get((period, project), 0) + cost
        return spent

    def in_last_hour(self, now: int) -> dict[int, int]:
        """Return what was spent in the 60 minutes before `now` by project id, in pico-USD."""
        spent: dict[int, int] = {}
        for time, project, cost in self._turns:
            if now - HOUR_MS < time <= now + _AHEAD_MS:
                spent[project] = spent.get(project, 0) + cost
        return spent

    def _load(self, rates: Mapping[int, Rate], now: int, last_turn: int) -> None:
        self._slots: dict[tuple[int, int], int] = {}
        self._turns: list[tuple[int, int, int]] = []
        slots = self._db.execute(
            f"SELECT slot, project, rate, {_COUNTS} FROM spend_total WHERE slot >= ?",
            (_first_kept(now),),
        )
        self._add_slots((((row[0], row[1], row[2]), row[3:]) for row in slots), rates, now)
        if last_turn > now - HOUR_MS:
            turns = self._db.execute(
                f"SELECT time, project, rate, {_COUNTS} FROM turn WHERE time > ? AND rate != 0",
                (now - HOUR_MS,),
            )
            self._add_turns(((*row[:3], TokenUsage(*row[3:])) for row in turns), rates, now)

    def _add_slots(
        self,
        rows: Iterable[tuple[SpendKey, Sequence[int]]],
        rates: Mapping[int, Rate],
        now: int,
    ) -> None:
        first = _first_kept(now)
        for (slot, project, rate), counts in rows:
            if slot >= first:
                key = (slot, project)
                self._slots[key] = self._slots.get(key, 0) + rates[rate].cost(counts)
        if self._slots and min(self._slots)[0] < first:
            self._slots = {key: cost for key, cost in self._slots.items() if key[0] >= first}

    def _add_turns(self, turns: Iterable[Spending], rates: Mapping[int, Rate], now: int) -> None:
        self._turns = [turn for turn in self._turns if turn[0] > now - HOUR_MS]
        self._turns += (
            (time, project, rates[rate].cost(usage)) for time, project, rate, usage in turns
        )


def _first_kept(now: int) -> int:
    return (now - _KEPT_MS) // SLOT_MS
