"""Pushing: what the receiver has is what was spent, whatever becomes of requests and of us."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from time import monotonic

import pytest

from exporter.ledger.audience import Audience
from exporter.ledger.model import (
    Batch,
    Project,
    Role,
    Status,
    TokenUsage,
    ToolCall,
    Turn,
    call_key,
    message_key,
)
from exporter.outputs import push
from exporter.outputs.push import Pusher
from exporter.outputs.sender import Outcome
from tests.otlp_points import Attributes, Histogram, Point
from tests.outputs.pushing import LOST, REFUSED, TAKEN, UNHEARD, UNREACHED, Pushing, by_series

SEEDS = 5
MODELS = ("gemini-2.5-flash", "gemini-2.5-pro", "nobody-prices-this")
HOUR = 3_600_000
TURNS = "gemini_cli.turns"

_numbers = itertools.count()


def work(pushing: Pushing, project: str = "shop", ago: int = 0, turns: int = 1) -> None:
    """Count turns that happened `ago` milliseconds before now, each with a tool call.

    Some think and some do not; some of the calls fail: there are counters that begin with 0.
    """
    batch = Batch()
    for _ in range(turns):
        number = next(_numbers)
        message, model = message_key(f"m-{number}"), MODELS[number % 3]
        place, time = Project(project, f"/home/ana/{project}"), pushing.clock.now - ago
        usage = TokenUsage(1_000 * number, 10, number, number % 4, 1)
        session = f"s-{project}"
        batch.turns.append(Turn(message, session, Role.MAIN, place, model, time, usage))
        call = call_key(f"c-{number}")
        status = Status.SUCCESS if number % 4 else Status.ERROR
        batch.calls.append(ToolCall(message, call, "read_file", status, place, model, time))
    pushing.ledger.record(batch)


@pytest.fixture(params=[False, True], ids=["cumulative", "delta"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pushing]:
    """A ledger with history, pushed to a receiver for the first time an hour ago."""
    yield from _begun(Pushing(tmp_path, delta=request.param))


@pytest.fixture
def cumulative(tmp_path: Path) -> Iterator[Pushing]:
    yield from _begun(Pushing(tmp_path))


@pytest.fixture
def delta(tmp_path: Path) -> Iterator[Pushing]:
    yield from _begun(Pushing(tmp_path, delta=True))


def _begun(pushing: Pushing) -> Iterator[Pushing]:
    work(pushing, ago=24 * HOUR, turns=3)
    pushing.ledger.finish_scan(["/home"])
    pushing.push()
    pushing.clock.now += HOUR
    yield pushing
    pushing.ledger.close()


def turns(points: dict[tuple[str, Attributes], Point], project: str) -> int | None:
    """Return the turns of a project in a request, None if it has none of its series."""
    found = [
        point.value
        for (name, attributes), point in points.items()
        if name == TURNS and dict(attributes)["project"] == project
    ]
    assert all(isinstance(value, int) for value in found)
    return sum(found) if found else None  # type: ignore[arg-type]


def test_history_is_sent_at_once_as_totals_and_not_at_all_as_differences(either: Pushing) -> None:
    first = by_series(either.mailbox.arrived[0])
    assert turns(first, "shop") == (None if either.delta else 3)


def test_a_new_series_is_sent_as_0_until_a_request_is_answered(cumulative: Pushing) -> None:
    work(cumulative, "fresh", turns=2)
    for verdict in (LOST, UNHEARD, REFUSED, TAKEN):
        cumulative.mailbox.verdict = lambda verdict=verdict: verdict  # type: ignore[misc]
        assert turns(cumulative.push(), "fresh") == 0
        assert turns(by_series(cumulative.mailbox.sent[-1]), "shop") == 3
    assert turns(cumulative.push(), "fresh") == 2


def test_scrapers_and_the_receiver_do_not_wait_for_each_other(cumulative: Pushing) -> None:
    ledger = cumulative.ledger
    ledger.asked(Audience.SCRAPERS)
    work(cumulative, "fresh")
    cumulative.push()
    assert turns(cumulative.push(), "fresh") == 1
    held = ledger.snapshot().held
    assert "fresh" in {project for _, project, *_ in held[Audience.SCRAPERS]}
    assert not held[Audience.RECEIVER]


def test_old_turns_that_turn_up_are_no_increase(either: Pushing) -> None:
    work(either, "restored", ago=40 * HOUR)
    assert turns(either.push(), "restored") == (None if either.delta else 1)


def test_totals_go_on_after_a_restart_with_the_same_start(cumulative: Pushing) -> None:
    work(cumulative, "fresh")
    cumulative.push()
    before = cumulative.push()
    cumulative.restart()
    work(cumulative, "shop")
    after = cumulative.push()
    assert turns(after, "fresh") == 1
    assert turns(after, "shop") == 4
    for key, point in before.items():
        if point.kind != "gauge" and not point.name.startswith("gemini_cli.exporter."):
            assert after[key].start == point.start
            assert after[key].time > point.time


def test_no_start_is_later_than_its_point(either: Pushing) -> None:
    """The clock of whoever writes the transcripts may be some minutes ahead."""
    work(either, "fresh", ago=-HOUR // 12, turns=3)
    told = [point for _ in range(2) for point in either.push().values() if point.kind != "gauge"]
    assert "fresh" in repr(told)
    assert all(point.start < point.time for point in told)


def test_a_difference_covers_the_time_since_the_one_before(delta: Pushing) -> None:
    began = delta.mailbox.arrived[0][0].time
    work(delta, "fresh", turns=2)
    work(delta, "shop")
    one = delta.push()
    assert (turns(one, "fresh"), turns(one, "shop")) == (2, 1)
    work(delta, "fresh")
    two = delta.push()
    assert (turns(two, "fresh"), turns(two, "shop")) == (1, None)
    counters = [[p for p in points.values() if p.kind != "gauge"] for points in (one, two)]
    assert {(p.start, p.temporality) for p in counters[0]} == {(began, "delta")}
    assert {p.time for p in counters[0]} == {p.start for p in counters[1]}


def test_what_begins_with_0_is_told_when_it_grows(delta: Pushing) -> None:
    """A model that has not thought yet, a tool that has not failed yet."""
    work(delta, "fresh", turns=3)
    names = {(name, key) for name, key in delta.push() if "fresh" in dict(key).values()}
    work(delta, "fresh", turns=12)
    later = delta.push()
    new = {(name, key) for name, key in later if "fresh" in dict(key).values()} - names
    assert {"gemini_cli.tokens", "gemini_cli.tool_errors"} <= {name for name, _ in new}


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize(
    "verdict", [LOST, UNHEARD, UNREACHED], ids=["lost", "unheard", "unreached"]
)
def test_a_difference_that_may_have_arrived_is_sent_again_unchanged(
    delta: Pushing, verdict: tuple[bool, Outcome], restart: bool
) -> None:
    work(delta, "fresh", turns=2)
    delta.mailbox.verdict = lambda: verdict
    first = delta.push()
    work(delta, "fresh", turns=5)
    if restart:
        delta.restart()
    delta.mailbox.verdict = lambda: TAKEN
    again = delta.push()
    adding = [{key: p for key, p in one.items() if p.kind != "gauge"} for one in (first, again)]
    assert adding[0] == adding[1]
    assert turns(again, "fresh") == 2
    rest = delta.push()
    assert turns(rest, "fresh") == 5
    assert (
        rest[TURNS, next(key for name, key in rest if name == TURNS)].start
        == first[TURNS, next(key for name, key in first if name == TURNS)].time
    )


def test_what_was_refused_is_part_of_the_next_difference(delta: Pushing) -> None:
    """The same would be refused again, as for its age; nothing of it was kept."""
    work(delta, "fresh", turns=2)
    delta.mailbox.verdict = lambda: REFUSED
    refused = delta.push()
    work(delta, "fresh", turns=5)
    delta.mailbox.verdict = lambda: TAKEN
    taken = delta.push()
    assert turns(taken, "fresh") == 7
    times = [next(p for p in one.values() if p.kind == "sum") for one in (refused, taken)]
    assert times[0].start == times[1].start
    assert times[0].time < times[1].time


def test_what_may_have_arrived_and_is_refused_then_is_not_sent_in_another_request(
    delta: Pushing,
) -> None:
    """A receiver that knows it already may refuse it: it would be counted twice."""
    work(delta, "fresh", turns=2)
    for verdict in (UNHEARD, REFUSED):
        delta.mailbox.verdict = lambda verdict=verdict: verdict  # type: ignore[misc]
        assert turns(delta.push(), "fresh") == 2
    delta.mailbox.verdict = lambda: TAKEN
    work(delta, "fresh")
    assert turns(delta.push(), "fresh") == 1


def test_what_the_exporter_counts_of_itself_begins_with_each_start(delta: Pushing) -> None:
    read = ("gemini_cli.exporter.read", ())
    delta.stats.read_bytes = 100
    assert delta.push()[read].value == 100
    delta.stats.read_bytes = 130
    assert delta.push()[read].value == 30
    delta.restart()
    delta.stats.read_bytes = 140
    assert delta.push()[read].value == 140


def test_a_ledger_that_was_set_back_sends_no_negative_difference(delta: Pushing) -> None:
    """As by the copy that takes the place of a damaged one."""
    pushed = delta.ledger.pushed()
    work(delta, "fresh", turns=2)
    delta.push()
    del pushed
    series = '["gemini_cli.turns","gemini-2.5-pro","shop"]'
    delta.ledger.defer(
        lambda db: db.execute(
            "UPDATE pushed SET value = '[900]' WHERE series = ?", (series,)
        ).close()
    )
    delta.ledger.tend()
    delta.restart()
    values = [p.value for p in delta.push().values() if p.kind == "sum"]
    assert all(isinstance(value, Histogram) or value >= 0 for value in values)
    assert turns(delta.push(), "shop") is None
    work(delta, turns=2)
    assert turns(delta.push(), "shop") == 2


class World:
    """A ledger whose differences are pushed while much goes wrong."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = Random(seed)
        self.pushing = Pushing(folder, delta=True)
        work(self.pushing, ago=24 * HOUR, turns=4)
        self.pushing.ledger.finish_scan(["/home"])
        self.history = self.totals()
        self.pushing.push()
        self.pushing.mailbox.verdict = self._verdict

    def totals(self) -> dict[tuple[str, Attributes], tuple[float, ...]]:
        """Return the usage counters as the ledger has them, as OTLP names them."""
        totals = {}
        for metric in self.pushing.pusher._metrics:
            if metric.metric.family:
                for values, value in metric.metric.read(self.pushing.exposition.view()):
                    pairs = zip(metric.keys, values, strict=True)
                    key = tuple(sorted((name, text) for name, text in pairs if text))
                    totals[metric.name, key] = numbers(value)
        return totals

    def run(self) -> None:
        """Let much happen, and then nothing until all has been taken."""
        for _ in range(60):
            act = self.rng.choice((self._work, self._work, self._restart, None, None))
            if act is not None:
                act()
            self.pushing.push()
        self.pushing.mailbox.verdict = lambda: TAKEN
        for _ in range(3):
            self.pushing.push()

    def received(self) -> dict[tuple[str, Attributes], tuple[float, ...]]:
        """Return the sums of what the receiver took; what came twice is one."""
        sums: dict[tuple[str, Attributes], tuple[float, ...]] = {}
        seen: dict[tuple[str, Attributes, int], Point] = {}
        for point in itertools.chain.from_iterable(self.pushing.mailbox.arrived):
            if point.kind == "gauge" or point.name.startswith("gemini_cli.exporter."):
                continue
            key = (point.name, point.attributes)
            assert seen.setdefault((*key, point.start), point) == point, "not unchanged"
        for (name, attributes, _), point in seen.items():
            value = numbers(point.value)
            old = sums.get((name, attributes), (0,) * len(value))
            sums[name, attributes] = tuple(map(float.__add__, map(float, old), map(float, value)))
        return sums

    def _work(self) -> None:
        project = self.rng.choice(("shop", "web", f"new-{self.rng.randrange(20)}"))
        work(self.pushing, project, turns=self.rng.randint(1, 3))

    def _restart(self) -> None:
        self.pushing.restart()

    def _verdict(self) -> tuple[bool, Outcome]:
        # What may have arrived and is refused then is believed to have arrived.
        deltas = self.pushing.pusher._deltas
        assert deltas is not None
        some = (TAKEN, UNREACHED, LOST, UNHEARD)
        return self.rng.choice(some if deltas.doubtful else (*some, REFUSED))


def numbers(value: object) -> tuple[float, ...]:
    if isinstance(value, Histogram):
        return (*itertools.accumulate(value.buckets), value.sum)
    if isinstance(value, tuple):
        return (*value.counts, value.sum)  # type: ignore[attr-defined]
    return (value,)  # type: ignore[return-value]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_in_any_order_of_things_differences_add_up_to_what_was_spent(
    tmp_path: Path, seed: int
) -> None:
    """To what the ledger has grown by since the first request, whatever was lost or came twice."""
    world = World(tmp_path, seed)
    with closing(world.pushing.ledger):
        world.run()
        received, spent = world.received(), 0
        for key, totals in world.totals().items():
            before = world.history.get(key, (0,) * len(totals))
            grown = [new - old for old, new in zip(before, totals, strict=True)]
            found = received.pop(key, (0,) * len(totals))
            assert found == pytest.approx(grown, rel=1e-9, abs=1e-12), key
            spent += any(grown)
        assert received == {}
        assert spent > 100


def live(
    pushing: Pushing, interval: float = 60.0, delta: bool = False
) -> tuple[Pusher, threading.Event]:
    """Return a pusher with a thread, and what wakes the one who tends to the ledger: the test."""
    wake = threading.Event()
    stats, view = pushing.stats, pushing.exposition.view
    return (
        Pusher(pushing.ledger, view, pushing.mailbox, interval, stats, wake, delta=delta),
        wake,
    )


def until(wanted: Callable[[], object]) -> None:
    end = monotonic() + 20
    while not wanted():
        assert monotonic() < end
        threading.Event().wait(0.01)


def test_the_end_sends_the_zeros_of_what_is_new_and_then_its_values(cumulative: Pushing) -> None:
    pusher, _ = live(cumulative)
    pusher.start()
    until(lambda: cumulative.stats.otlp_exports == 2)
    work(cumulative, "fresh", turns=2)
    pusher.stop()
    sent = [turns(by_series(request), "fresh") for request in cumulative.mailbox.arrived[-2:]]
    assert sent == [0, 2]
    assert cumulative.mailbox.closed


def test_the_end_sends_the_last_difference(delta: Pushing) -> None:
    pusher, wake = live(delta, delta=True)
    pusher.start()

    def tended() -> bool:
        wake.wait(0.1)
        wake.clear()
        delta.ledger.tend()
        return delta.stats.otlp_exports == 2

    until(tended)
    work(delta, "fresh", turns=2)
    pusher.stop()
    assert turns(by_series(delta.mailbox.arrived[-1]), "fresh") == 2
    assert delta.ledger.pushed().pending is None


def test_the_end_does_not_wait_for_a_receiver_that_fails(cumulative: Pushing) -> None:
    cumulative.mailbox.verdict = lambda: LOST
    pusher, _ = live(cumulative)
    pusher.start()
    until(lambda: cumulative.stats.otlp_export_failures == 1)
    pusher.stop()
    assert cumulative.stats.otlp_exports == 2
    assert cumulative.mailbox.closed


def test_the_end_leaves_a_request_that_hangs(
    cumulative: Pushing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "_ENDING_SECONDS", 0.1)
    hangs, goes_on = threading.Event(), threading.Event()

    def verdict() -> tuple[bool, Outcome]:
        hangs.set()
        goes_on.wait(20)
        return LOST

    cumulative.mailbox.verdict = verdict
    pusher, _ = live(cumulative)
    pusher.start()
    assert hangs.wait(20)
    pusher.stop()
    assert not goes_on.is_set()
    goes_on.set()
    pusher._thread.join(20)


def test_nothing_is_sent_before_the_first_scan_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A history that is half read must not look like the whole."""
    monkeypatch.setattr(push, "_FIRST_LOOK_SECONDS", 0.01)
    pushing = Pushing(tmp_path)
    with closing(pushing.ledger):
        pusher, _ = live(pushing)
        work(pushing, turns=2)
        pusher.start()
        threading.Event().wait(0.1)
        assert pushing.mailbox.sent == []
        work(pushing, turns=2)
        pushing.ledger.finish_scan([])
        until(lambda: pushing.mailbox.sent)
        assert turns(by_series(pushing.mailbox.sent[0]), "shop") == 4
        pusher.stop()


def test_no_difference_is_sent_that_the_ledger_does_not_hold(
    delta: Pushing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash nobody could send it again unchanged."""
    monkeypatch.setattr(push, "_STORING_SECONDS", 0.01)
    pusher, wake = live(delta, delta=True)
    work(delta, "fresh")
    before = len(delta.mailbox.sent)
    assert not pusher.push()
    assert not pusher.push()
    assert wake.is_set()
    assert len(delta.mailbox.sent) == before
    assert delta.stats.otlp_export_failures == 2
    delta.ledger.tend()
    assert pusher.push()
    assert turns(by_series(delta.mailbox.sent[-1]), "fresh") == 1


def test_times_go_on_while_the_clock_is_set_back(either: Pushing) -> None:
    before = either.mailbox.sent[-1][0].time
    either.clock.now -= 3 * HOUR
    work(either)
    first, second = either.push(), either.push()
    adding = [[p for p in points.values() if p.kind != "gauge"] for points in (first, second)]
    assert {p.time for p in adding[0]} == {before + 10**6}
    assert {p.time for p in adding[1]} <= {before + 2 * 10**6}


def test_a_fault_is_told_once_and_so_is_its_end(
    cumulative: Pushing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "exporter")
    for verdict in (LOST, LOST, LOST, TAKEN, TAKEN):
        cumulative.mailbox.verdict = lambda verdict=verdict: verdict  # type: ignore[misc]
        cumulative.push()
    assert [record.getMessage() for record in caplog.records] == ["cannot push", "pushing again"]
    assert (cumulative.stats.otlp_exports, cumulative.stats.otlp_export_failures) == (6, 3)


def test_an_error_of_the_libraries_is_a_failure_and_not_the_end(
    cumulative: Pushing, caplog: pytest.LogCaptureFixture
) -> None:
    def verdict() -> tuple[bool, Outcome]:
        raise ValueError("metadata was invalid: secret")

    caplog.set_level(logging.INFO, "exporter")
    cumulative.mailbox.verdict = verdict
    pusher, _ = live(cumulative, interval=0.01)
    pusher.start()
    until(lambda: cumulative.stats.otlp_export_failures > 2)
    cumulative.mailbox.verdict = lambda: TAKEN
    until(lambda: cumulative.mailbox.arrived[1:])
    pusher.stop()
    assert "ValueError" in str(caplog.records[0].__dict__)
    assert "secret" not in str([record.__dict__ for record in caplog.records])
