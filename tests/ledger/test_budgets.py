"""The calendar: where days, weeks and months begin and end, in every time zone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from exporter.ledger.budgets import SLOT_MS, Calendar, Period, Span

STEP = 5 * 60
DAY = 86_400
BEGIN, END = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (2024, 2031))

MACHINES = {
    "CET-1CEST,M3.5.0,M10.5.0/3": "Europe/Berlin",
    "<-04>4<-03>,M9.1.6/24,M4.1.6/24": "America/Santiago",
    "<+1030>-10:30<+11>-11,M10.1.0,M4.1.0": "Australia/Lord_Howe",
    "<+0545>-5:45": "Asia/Kathmandu",
    "UTC0": "UTC",
}
"""Settings of a machine's own zone that need no table of zones, and the zone that is the same."""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Set the machine's own zone through TZ; `time.tzset` is due after that."""
    yield monkeypatch
    monkeypatch.undo()
    time.tzset()


def seconds(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp())


def local(at: int, zone: tzinfo | None) -> date:
    """Return the date on the clocks, at a time in seconds since the epoch."""
    return datetime.fromtimestamp(at, zone).date()


def spans(at: int, zone: str) -> dict[Period, Span]:
    """Return the spans of a calendar that was asked nothing before."""
    return dict(Calendar(ZoneInfo(zone)).spans(at * 1000))


def hours(span: Span) -> float:
    return (span.end - span.start) / 3_600_000


@cache
def changes(name: str) -> tuple[tuple[int, timedelta | None], ...]:
    """Return when a zone's clocks are changed from 2024 to 2030, and their offset after that."""

    def offset(at: int) -> timedelta | None:
        return datetime.fromtimestamp(at, zone).utcoffset()

    zone = ZoneInfo(name)
    found = [(BEGIN, offset(BEGIN))]
    for week in range(BEGIN, END, 7 * DAY):
        early, late = week, week + 7 * DAY
        if offset(late) != found[-1][1]:
            while late - early > 1:
                middle = (early + late) // 2
                early, late = (middle, late) if offset(middle) == found[-1][1] else (early, middle)
            found.append((late, offset(late)))
    return tuple(found)


@cache
def zones() -> tuple[str, ...]:
    """Return a zone of each kind: many names stand for the same clocks."""
    return tuple({changes(name): name for name in sorted(available_timezones())}.values())


def test_a_slot_never_crosses_a_change_of_any_zones_clocks() -> None:
    for name in zones():
        for at, offset in changes(name):
            assert at * 1000 % SLOT_MS == 0, name
            assert offset is not None
            assert offset % timedelta(milliseconds=SLOT_MS) == timedelta(0), name


def test_days_around_every_change_are_those_of_a_search_in_steps_of_minutes() -> None:
    lengths = set()
    for name in zones():
        zone = ZoneInfo(name)
        for change, _ in changes(name)[1:]:
            first: dict[date, int] = {}
            for at in range(change - 2 * DAY, change + 2 * DAY, STEP):
                first.setdefault(local(at, zone), at)
            days = sorted(first.items())[1:]  # the first one began before the search did
            calendar = Calendar(zone)
            for (_, start), (_, end) in pairwise(days):
                for now in (start * 1000, (start + end) * 500, end * 1000 - 1):
                    assert calendar.spans(now)[Period.DAY] == (start * 1000, end * 1000), name
                lengths.add((end - start) / 3600)
    assert lengths >= {23, 23.5, 24, 24.5, 25}


@given(zone=st.deferred(lambda: st.sampled_from(zones())), at=st.integers(BEGIN, END))
@example("Pacific/Apia", seconds("2011-12-30T11:00"))
@example("America/Santiago", seconds("2026-09-06T03:59:59"))
def test_a_period_begins_at_the_first_instant_of_its_first_date(zone: str, at: int) -> None:
    """At its start it is that date, or a later one where that was left out; before it is not."""
    today = local(at, ZoneInfo(zone))
    monday = today - timedelta(days=today.weekday())
    month = today.replace(day=1)
    next_month = month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)
    dates = {
        Period.DAY: (today, today + timedelta(days=1)),
        Period.WEEK: (monday, monday + timedelta(days=7)),
        Period.MONTH: (month, next_month),
    }
    found = spans(at, zone)
    assert list(found) == list(Period)
    for period, span in found.items():
        assert span.start <= at * 1000 < span.end
        for bound, day in zip(span, dates[period], strict=True):
            assert bound % SLOT_MS == 0
            assert local(bound // 1000, ZoneInfo(zone)) >= day
            assert local(bound // 1000 - 1, ZoneInfo(zone)) < day


@pytest.mark.parametrize(
    ("zone", "noon", "start", "length"),
    [
        ("UTC", "2024-02-29T12:00", "00:00", 24),
        ("Europe/Berlin", "2025-03-30T12:00", "00:00", 23),
        ("Europe/Berlin", "2025-10-26T12:00", "00:00", 25),
        ("Australia/Lord_Howe", "2024-10-06T12:00", "00:00", 23.5),
        ("Australia/Lord_Howe", "2025-04-06T12:00", "00:00", 24.5),
        # Clocks that jump over midnight, and the long day at the other end of the summer.
        ("America/Santiago", "2024-09-08T12:00", "01:00", 23),
        ("America/Santiago", "2025-04-05T12:00", "00:00", 25),
        ("America/Asuncion", "2024-10-06T12:00", "01:00", 23),
        ("America/Havana", "2025-03-09T12:00", "01:00", 23),
        ("Africa/Cairo", "2025-04-25T12:00", "01:00", 23),
        ("Africa/Cairo", "2024-10-31T12:00", "00:00", 25),
        ("Asia/Beirut", "2025-03-30T12:00", "01:00", 23),
        # Samoa went over the date line and had no 30 December.
        ("Pacific/Apia", "2011-12-29T12:00", "00:00", 24),
        ("Pacific/Apia", "2011-12-31T12:00", "00:00", 24),
    ],
)
def test_a_day_may_be_short_or_long_and_begin_after_midnight(
    zone: str, noon: str, start: str, length: float
) -> None:
    day = spans(seconds(noon, zone), zone)[Period.DAY]
    begun = datetime.fromtimestamp(day.start / 1000, ZoneInfo(zone))
    assert begun.replace(tzinfo=None).isoformat("T", "minutes") == f"{noon[:10]}T{start}"
    assert hours(day) == length


def test_a_week_or_month_with_a_date_left_out_is_shorter() -> None:
    found = spans(seconds("2011-12-29T12:00", "Pacific/Apia"), "Pacific/Apia")
    assert hours(found[Period.WEEK]) == 6 * 24
    assert hours(found[Period.MONTH]) == 30 * 24


@pytest.mark.parametrize(
    ("now", "week", "month"),
    [
        ("2024-12-29T23:59:59", ("2024-12-23", "2024-12-30"), ("2024-12-01", "2025-01-01")),
        ("2024-12-30T00:00:00", ("2024-12-30", "2025-01-06"), ("2024-12-01", "2025-01-01")),
        ("2025-01-01T00:00:00", ("2024-12-30", "2025-01-06"), ("2025-01-01", "2025-02-01")),
        ("2026-12-31T12:00:00", ("2026-12-28", "2027-01-04"), ("2026-12-01", "2027-01-01")),
        ("2027-01-03T23:59:59", ("2026-12-28", "2027-01-04"), ("2027-01-01", "2027-02-01")),
        ("2028-02-29T12:00:00", ("2028-02-28", "2028-03-06"), ("2028-02-01", "2028-03-01")),
    ],
)
def test_weeks_and_months_over_the_end_of_a_year(
    now: str, week: tuple[str, str], month: tuple[str, str]
) -> None:
    found = spans(seconds(now), "UTC")
    assert found[Period.WEEK] == tuple(seconds(day) * 1000 for day in week)
    assert found[Period.MONTH] == tuple(seconds(day) * 1000 for day in month)


def test_a_calendar_follows_the_clock_in_any_direction() -> None:
    """What it remembers of the answer before shows in none: a second on, a year on, and back."""
    calendar = Calendar(ZoneInfo("Europe/Berlin"))
    midnight = seconds("2026-03-29T00:00", "Europe/Berlin")
    for at in (
        midnight - 1,
        midnight,
        midnight + 23 * 3600 - 1,
        midnight + 366 * DAY,
        midnight - 1,
    ):
        assert calendar.spans(at * 1000) == spans(at, "Europe/Berlin")


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="TZ sets no time zone on this system")
@pytest.mark.parametrize(("variable", "name"), MACHINES.items(), ids=list(MACHINES.values()))
def test_the_machines_own_zone_is_that_of_tz(
    machine: pytest.MonkeyPatch, variable: str, name: str
) -> None:
    machine.setenv("TZ", variable)
    time.tzset()
    own = Calendar(None)
    for at in range(seconds("2024-05-01"), seconds("2026-05-01"), 10 * 3600 + 7):
        assert own.spans(at * 1000) == spans(at, name)
