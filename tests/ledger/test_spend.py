"""What was spent by the calendar and in the last hour: always the sum over the ledger's turns."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.ledger.budgets import SLOT_MS, Calendar, Period
from exporter.ledger.labels import LabelRules, ProjectLabel
from exporter.ledger.model import Batch, Project, Role, TokenUsage, Turn, message_key
from exporter.ledger.pricing import PriceBook, PriceOverride, PriceTier
from exporter.ledger.store import Ledger
from exporter.ledger.totals import Spending
from tests.support import BOOK, Clock, gemini, header, home, millis

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
HOUSE = PriceBook({"house": PriceOverride(PriceTier(Decimal(2), Decimal(4)))})
"""Prices that know a model which the published ones do not."""

UTC = Calendar()
SANTIAGO = Calendar(ZoneInfo("America/Santiago"))
KATHMANDU = Calendar(ZoneInfo("Asia/Kathmandu"))

Key = TypeVar("Key")

FLASH = 300_000
"""Pico-USD for one input token of gemini-2.5-flash."""


class Machine:
    """A ledger with a clock set by hand, and the truth about it: its table of turns."""

    def __init__(self, folder: Path, now: str = "2026-11-30T21:00:00+00:00") -> None:
        self.path = folder / "ledger.db"
        self.clock = Clock(now)
        self.ledger = Ledger(self.path, BOOK, self.clock)
        self._ids = 0

    def close(self) -> None:
        self.ledger.close()

    def restart(self, book: PriceBook = BOOK) -> None:
        self.close()
        self.ledger = Ledger(self.path, book, self.clock)

    def turn(
        self,
        tokens: int,
        age: int = 0,
        *,
        project: str = "shop",
        model: str = "gemini-2.5-flash",
        echo: bytes | None = None,
    ) -> Turn:
        """Record one more turn, so many milliseconds old; return it."""
        turn = self.made(tokens, age, project=project, model=model, echo=echo)
        self.ledger.record(Batch(turns=[turn]))
        return turn

    def made(
        self, tokens: int, age: int, *, project: str, model: str, echo: bytes | None = None
    ) -> Turn:
        """Return a turn with an id of its own that is not recorded yet."""
        self._ids += 1
        key, time = message_key(f"m-{self._ids}"), self.clock.now - age
        usage = TokenUsage(tokens, tokens // 3, 7, 5, 1) if tokens % 2 else TokenUsage(tokens)
        return Turn(key, "s-1", Role.MAIN, Project(project), model, time, usage, echo)

    def shown(self, calendar: Calendar = UTC) -> Spending:
        return self.ledger.spending(calendar.spans(self.clock.now))

    def spent(self, period: Period, project: str = "shop", calendar: Calendar = UTC) -> int:
        return self.shown(calendar).periods.get((period, project), 0)

    @property
    def last_hour(self) -> int:
        return sum(self.shown().last_hour.values())

    def truth(self, calendar: Calendar) -> tuple[Counter[tuple[Period, str]], Counter[str]]:
        """Add up the turns in the file, one by one, for the periods and the hour of now."""
        now, spans = self.clock.now, calendar.spans(self.clock.now)
        periods: Counter[tuple[Period, str]] = Counter()
        hour: Counter[str] = Counter()
        with closing(sqlite3.connect(self.path)) as db:
            rows = db.execute(
                "SELECT t.time, p.label, (t.input + t.tool) * r.input + t.cached * r.cached"
                " + (t.output + t.thoughts) * r.output FROM turn t"
                " JOIN rate r ON r.id = t.rate JOIN project p ON p.id = t.project"
            )
            for time, project, cost in rows:
                for period, span in spans.items():
                    if span.start <= time < span.end:
                        periods[period, project] += cost
                if now - HOUR < time <= now + 5 * MINUTE:
                    hour[project] += cost
        return periods, hour

    def check(self) -> None:
        """Compare what is shown with the truth, in several time zones."""
        for calendar in (UTC, SANTIAGO, KATHMANDU):
            shown, (periods, hour) = self.shown(calendar), self.truth(calendar)
            assert not_zero(shown.periods) == not_zero(periods)
            assert not_zero(shown.last_hour) == not_zero(hour)


def not_zero(amounts: Mapping[Key, int]) -> dict[Key, int]:
    return {key: amount for key, amount in amounts.items() if amount}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with closing(Machine(tmp_path)) as made:
        yield made


# Any history


class Wait(NamedTuple):
    """The clock goes on, or is set back."""

    ms: int


class Record(NamedTuple):
    """A batch of turns: age, tokens, project, model, and which earlier one is taken back."""

    turns: list[tuple[int, int, str, str, int]]


class Restart(NamedTuple):
    """The program ends and starts again, with prices of its own or without."""

    own: bool


AGES = st.one_of(
    st.integers(-5 * MINUTE, 2 * HOUR),
    st.integers(0, 45 * DAY),
    st.sampled_from([0, HOUR - 1, HOUR, HOUR + 1, DAY, 40 * DAY]),
)
TURNS = st.tuples(
    AGES,
    st.integers(0, 300_000),
    st.sampled_from(["shop", "api"]),
    st.sampled_from(["gemini-2.5-flash", "gemini-2.5-pro", "gemma-4-31b-it", "house"]),
    st.integers(0, 6),
)
WAITS = st.sampled_from([1, SLOT_MS, HOUR, 5 * HOUR, DAY, 9 * DAY, 60 * DAY, -MINUTE, -3 * HOUR])
STEPS = st.one_of(
    st.builds(Wait, WAITS | st.integers(0, 50 * DAY)),
    st.builds(Record, st.lists(TURNS, min_size=1, max_size=5)),
    st.builds(Restart, st.booleans()),
)


@settings(max_examples=60)
@given(steps=st.lists(STEPS, min_size=1, max_size=10), first_scan=st.booleans())
def test_spending_is_the_sum_over_the_turns_whatever_happens(
    steps: list[Wait | Record | Restart], first_scan: bool
) -> None:
    """Echoes, late prices, restarts, sleep and clocks set back, in three time zones."""
    with TemporaryDirectory() as folder, closing(Machine(Path(folder))) as machine:
        run(machine, steps, first_scan)


def run(machine: Machine, steps: list[Wait | Record | Restart], first_scan: bool) -> None:
    keys: list[bytes] = []
    noticed = machine.clock.now
    if not first_scan:
        machine.ledger.finish_scan([])
    for step in steps:
        match step:
            case Wait(ms):
                machine.clock.now += ms
                if machine.clock.now < noticed:
                    continue  # that the clock was set back is noticed with the next turn
            case Restart(own):
                machine.restart(HOUSE if own else BOOK)
            case Record(turns):
                batch = []
                for age, tokens, project, model, back in turns:
                    echo = keys[-back] if 0 < back <= len(keys) else None
                    batch.append(machine.made(tokens, age, project=project, model=model, echo=echo))
                    keys.append(batch[-1].id)
                machine.ledger.record(Batch(turns=batch))
        noticed = machine.clock.now
        machine.check()


# By the calendar


def test_it_is_there_at_once_and_after_a_restart(machine: Machine) -> None:
    machine.turn(10)
    for _ in range(2):
        assert {machine.spent(period) for period in Period} == {10 * FLASH}
        assert machine.last_hour == 10 * FLASH
        machine.restart()


def test_a_period_ends_without_any_turn(machine: Machine) -> None:
    """Midnight in UTC, and an hour later the end of the hour; nothing is written meanwhile."""
    machine.clock.now = millis("2026-11-30T23:59:59.999Z")
    machine.turn(10)
    machine.clock.now += 1
    assert (machine.spent(Period.DAY), machine.spent(Period.MONTH)) == (0, 0)
    assert machine.spent(Period.WEEK) == machine.last_hour == 10 * FLASH
    machine.clock.now += HOUR - 2
    assert machine.last_hour == 10 * FLASH
    machine.clock.now += 1
    assert machine.last_hour == 0
    machine.clock.now = millis("2026-12-07T00:00Z")
    assert machine.spent(Period.WEEK) == 0


def test_the_last_hour_goes_on_where_week_and_month_begin_together(machine: Machine) -> None:
    """Monday, 1 June 2026: no period of now holds the turn, but the hour does."""
    machine.clock.now = millis("2026-05-31T23:50Z")
    machine.turn(10)
    machine.clock.now = millis("2026-06-01T00:10Z")
    assert machine.last_hour == 10 * FLASH
    assert {machine.spent(period) for period in Period} == {0}


def test_a_project_is_shown_in_every_period_while_it_has_a_turn_in_one(machine: Machine) -> None:
    machine.clock.now = millis("2026-11-10T12:00Z")
    machine.turn(10)
    machine.turn(10, project="api", model="house")
    machine.turn(10, 40 * DAY, project="old")
    machine.clock.now = millis("2026-11-30T12:00Z")
    shown = machine.shown()
    assert shown.periods == {
        (period, project): 10 * FLASH if (period, project) == (Period.MONTH, "shop") else 0
        for period in Period
        for project in ("shop", "api")
    }
    assert shown.last_hour == {"shop": 0, "api": 0}


def test_a_turn_just_ahead_of_the_clock_is_spent_now(machine: Machine) -> None:
    machine.turn(10, -5 * MINUTE)
    assert machine.spent(Period.DAY) == machine.last_hour == 10 * FLASH


def test_a_turn_ahead_of_the_clock_over_midnight_is_tomorrows(machine: Machine) -> None:
    machine.clock.now = millis("2026-11-27T23:58Z")
    machine.turn(10, -5 * MINUTE)
    assert (machine.spent(Period.DAY), machine.last_hour) == (0, 10 * FLASH)
    machine.clock.now += 2 * MINUTE
    assert machine.spent(Period.DAY) == 10 * FLASH


def test_after_days_of_sleep_nothing_is_left_of_the_old_day(machine: Machine) -> None:
    machine.clock.now = millis("2026-11-03T12:00Z")
    machine.turn(10)
    machine.clock.now += 5 * DAY
    assert (machine.spent(Period.DAY), machine.last_hour) == (0, 0)
    machine.turn(20)
    assert machine.spent(Period.DAY) == machine.last_hour == 20 * FLASH
    assert machine.spent(Period.MONTH) == 30 * FLASH


@pytest.mark.parametrize("ahead", [2 * HOUR, DAY, 400 * DAY], ids=["hours", "a day", "a year"])
def test_a_clock_that_was_wrong_and_is_set_back_takes_nothing_away(
    machine: Machine, ahead: int
) -> None:
    """What was dropped as too old is there again; what happened then is not of this hour."""
    first = machine.turn(10, 30 * MINUTE)
    machine.clock.now += ahead
    machine.turn(20)
    machine.clock.now -= ahead
    assert machine.last_hour in (0, 10 * FLASH), "the turn ahead is not in this hour"
    machine.turn(10, echo=first.id)
    assert machine.last_hour == 10 * FLASH
    machine.check()


def test_a_reply_under_two_ids_is_spent_once_at_the_time_of_the_second(machine: Machine) -> None:
    """As a stream's first usage is recorded with the message before it, and later the whole."""
    machine.clock.now = millis("2026-11-27T23:59Z")
    first = machine.turn(10)
    machine.clock.now = millis("2026-11-28T00:01Z")
    machine.turn(10, echo=first.id)
    assert machine.spent(Period.DAY) == machine.last_hour == 10 * FLASH
    machine.check()
    machine.restart()
    machine.check()


def test_a_turn_that_gets_its_price_later_is_spent_at_its_own_time(machine: Machine) -> None:
    machine.clock.now = millis("2026-11-27T12:00Z")
    machine.turn(10, model="house")
    machine.turn(20, DAY, model="house")
    assert (machine.spent(Period.WEEK), machine.last_hour) == (0, 0)
    machine.restart(HOUSE)
    assert machine.spent(Period.DAY) == machine.last_hour == 10 * 2_000_000
    assert machine.spent(Period.WEEK) == 30 * 2_000_000
    machine.restart()
    machine.check()


def test_labels_that_several_projects_share_are_added_up(machine: Machine) -> None:
    """As with no project label at all."""
    for project in ("shop", "api"):
        machine.turn(10, project=project)
    machine.close()
    machine.ledger = Ledger(machine.path, BOOK, machine.clock, LabelRules(ProjectLabel.NONE))
    assert machine.shown().periods == {(period, ""): 20 * FLASH for period in Period}
    assert machine.shown().last_hour == {"": 20 * FLASH}


def test_what_is_kept_in_memory_does_not_grow_with_the_days(machine: Machine) -> None:
    """A year at one turn a quarter of an hour: 40 days of slots, and an hour of turns."""
    step = 6
    for _ in range(365 // step):
        turns = [
            machine.made(2, age, project="shop", model="gemini-2.5-flash")
            for age in range(0, step * DAY, SLOT_MS)
        ]
        machine.ledger.record(Batch(turns=turns))
        machine.clock.now += step * DAY
    machine.turn(2)
    spend = machine.ledger._memory._spend
    assert len(spend._slots) <= 40 * DAY // SLOT_MS + 2
    assert len(spend._turns) <= HOUR // SLOT_MS + 1
    machine.check()


def test_a_turn_is_spent_by_its_recorded_time_not_by_when_it_was_read(tmp_path: Path) -> None:
    """A transcript that comes from another machine a day late, read by the whole program."""
    with home(tmp_path) as scratch:
        scratch.scan()
        late, now = gemini("a", 10, 0), gemini("b", 20, 0, time="2026-11-30T20:30:00Z")
        scratch.write(header(), late | {"timestamp": "2026-11-29T20:30:00Z"}, now)
        scratch.scan()
        shown = scratch.ledger.spending(UTC.spans(scratch.clock()))
    assert shown.periods[Period.DAY, "shop"] == shown.last_hour["shop"] == 20 * FLASH
    assert shown.periods[Period.MONTH, "shop"] == 30 * FLASH
