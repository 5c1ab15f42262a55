"""Calendar periods in a time zone, and what may be spent in each of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

SLOT_MS: Final = 15 * 60_000
"""Spending is kept by slots of this many milliseconds. Every time zone's offset from UTC is a whole
number of quarter hours today, so a period is a whole number of slots."""

_REACH: Final = timedelta(hours=30)
"""A local midnight is less than this away from the midnight of the same date in UTC."""


class Period(StrEnum):
    """What spending is added up by; a week begins on Monday, as in ISO 8601."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


class Span(NamedTuple):
    """Begin (inclusive) and end (exclusive) of a period, in milliseconds since the epoch."""

    start: int
    end: int


class Calendar:
    """Says when the current day, week and month begin and end.

    A period begins at the first instant of its local date: where clocks jump over midnight that is
    not 0:00, and a day may have 23 or 25 hours. `zone` None is this machine's own time zone.
    """

    def __init__(self, zone: tzinfo | None = UTC) -> None:
        self._zone = zone
        self._spans: dict[Period, Span] = {}

    def spans(self, now: int) -> Mapping[Period, Span]:
        """Return the span of each period that contains `now`, in milliseconds since the epoch."""
        spans = self._spans
        if not spans or any(not span.start <= now < span.end for span in spans.values()):
            today = self._date(now)
            monday = today - timedelta(days=today.weekday())
            first = today.replace(day=1)
            bounds = {
                Period.DAY: (today, today + timedelta(days=1)),
                Period.WEEK: (monday, monday + timedelta(days=7)),
                Period.MONTH: (first, (first + timedelta(days=31)).replace(day=1)),
            }
            spans = self._spans = {
                period: Span(self._begin(start), self._begin(end))
                for period, (start, end) in bounds.items()
            }
        return spans

    def _date(self, time: int) -> date:
        return datetime.fromtimestamp(time / 1000, self._zone).date()

    def _begin(self, day: date) -> int:
        """Return the first instant at which the local date is `day` or later."""
        midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
        early, late = (
            int((midnight + shift).timestamp() * 1000) // SLOT_MS for shift in (-_REACH, _REACH)
        )
        while late - early > 1:
            middle = (early + late) // 2
            if self._date(middle * SLOT_MS) < day:
                early = middle
            else:
                late = middle
        return late * SLOT_MS


Amounts = Mapping[Period, Decimal]
"""What may be spent in each period, in USD; a period without a budget is not in it."""


class Budgets(NamedTuple):
    """What may be spent: in all, and by the label of a project; `calendar` says when."""

    calendar: Calendar = Calendar()
    total: Amounts = MappingProxyType({})
    projects: Mapping[str, Amounts] = MappingProxyType({})


NO_BUDGETS: Final = Budgets()
"""Nothing is limited, and days begin at midnight UTC."""
