"""What scrapers store is what was spent, whatever the order of turns, scrapes and restarts.

GEMINI_CLI_EXPORTER_TEST_SEEDS sets how many random histories are played.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Container, Iterator
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import pytest

from exporter.ledger.audience import EVERYBODY, Audience
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
from exporter.ledger.stats import Stats
from exporter.ledger.store import Ledger
from exporter.ledger.totals import SeriesName
from exporter.outputs.catalog import CATALOG, rows
from exporter.outputs.metric import Buckets, Type, View
from exporter.outputs.prometheus import Exposition
from tests.support import BOOK, Clock

HOLD: Final = 90_000
STEP: Final = HOLD // 12
SCRAPE: Final = (HOLD // 6, HOLD // 3)
"""Milliseconds between two scrapes: even if every other one is lost, each hold has one."""

HOUR: Final = 3_600_000
DAY: Final = 24 * HOUR
STEPS: Final = 150
QUIET: Final = 80
"""Steps in which all that is held is shown and has been stored by everyone."""

SEEDS: Final = int(os.environ.get("GEMINI_CLI_EXPORTER_TEST_SEEDS", "5"))
MODELS: Final = ("gemini-2.5-flash", "gemini-2.5-pro", "made-up-1", "made-up-2")

Key = tuple[str, ...]
"""Name and label values of what Prometheus stores as one series."""


class Sample(NamedTuple):
    """A stored value, what the ledger held then, and the ledger's name of the series."""

    value: float
    truth: float
    name: SeriesName


def values(view: View) -> Iterator[tuple[Key, SeriesName, float]]:
    """Yield every series of the usage counters in a view."""
    for metric in CATALOG:
        if metric.type is Type.GAUGE or not metric.family:
            continue
        for labels, value in rows(metric, view):
            name, key = metric.series(labels), (metric.name, *labels)
            if isinstance(value, Buckets):
                yield (*key, "sum"), name, value.sum
                for edge, count in zip((*value.edges, "+Inf"), value.counts, strict=True):
                    yield (*key, str(edge)), name, count
            else:
                yield key, name, value


class Scraper:
    """A server, with what it has stored of each series; of two answers it loses at most one.

    One that is pushed to stores what it is sent, but its answer may be lost.
    """

    def __init__(self, losses: float, audience: Audience = Audience.SCRAPERS) -> None:
        self.audience = audience
        self.stored: dict[Key, list[Sample]] = {}
        self.next = 0
        self._losses = losses
        self._lost = False

    def loses(self, rng: Random) -> bool:
        self._lost = not self._lost and rng.random() < self._losses
        return self._lost


class World:
    """A ledger, its scrapers, and what happens to both, on one clock that is set by hand."""

    def __init__(self, folder: Path, seed: int, hold: int = HOLD) -> None:
        self.live: set[SeriesName] = set()
        """What was born by turns that had just happened."""
        self.mixed: set[SeriesName] = set()
        """What was still held when older turns came under the same name."""
        self.scrapers = [Scraper(0), Scraper(0), Scraper(0.5), Scraper(0.5, Audience.RECEIVER)]
        self._rng = Random(seed)
        self.clock = Clock()
        self._path = folder / "ledger.db"
        self._hold = hold
        self._numbers = itertools.count()
        self._known: set[SeriesName] = set()
        self._delivering: list[tuple[Audience, Container[SeriesName]]] = []
        self._open()
        self._count(self._batch(self.clock.now - 7 * DAY), live=False)
        self.ledger.finish_scan(["/home"])
        self.clock.now += DAY
        for scraper in self.scrapers:
            self.scrape(scraper)
        self.deliver()

    def run(self) -> None:
        """Let much happen, and then nothing until all has been shown."""
        for _ in range(STEPS):
            acts = (self._work, self._restore, self._add_root, self._restart)
            act = self._rng.choices((*acts, None), (8, 1, 1, 1, 12))[0]
            if act is not None:
                act()
            self._step()
        for _ in range(QUIET):
            self._step()
        self.ledger.close()

    def _step(self) -> None:
        self.clock.now += self._rng.randint(1, STEP)
        for scraper in self.scrapers:
            if scraper.next <= self.clock.now:
                self.scrape(scraper, scraper.loses(self._rng))
        self.deliver(0.7)
        if self._tend_at is not None and self._tend_at <= self.clock.now:
            self._tend()

    def _open(self) -> None:
        self.ledger = Ledger(self._path, BOOK, self.clock, hold=self._hold)
        stats = Stats(self.clock.now / 1000)
        self._exposition = Exposition(self.ledger, stats, self.clock, process=False)
        self._tend_at: int | None = None

    def _tend(self) -> None:
        self._tend_at = self.ledger.tend()

    def scrape(self, scraper: Scraper, loses: bool = False) -> None:
        """Answer a scrape; what is lost may have been delivered, and is stored by nobody."""
        audience = scraper.audience
        self.ledger.asked(audience)
        view = self._exposition.view(audience)
        if not loses:
            truths = values(self._exposition.view())
            for (key, name, value), (_, _, truth) in zip(values(view), truths, strict=True):
                scraper.stored.setdefault(key, []).append(Sample(value, truth, name))
        lucky = self._rng.random() < 0.5
        if (lucky and not loses) if audience is Audience.RECEIVER else (lucky or not loses):
            self._delivering.append((audience, view.held))
        scraper.next = self.clock.now + self._rng.randint(*SCRAPE)

    def deliver(self, odds: float = 1.0) -> None:
        """Let the ledger know of answers that arrived, each with some probability."""
        while self._delivering and self._rng.random() < odds:
            if self.ledger.delivered(*self._delivering.pop(0)):
                self._tend()

    def _work(self) -> None:
        """Turns happen, and are counted soon or, where the exporter is slow, within the hour."""
        ago = self._rng.choice((0, 0, HOUR // 2))
        self._count(self._batch(self.clock.now - ago), live=True)

    def _restore(self) -> None:
        """Old transcripts come back into a root that is known."""
        ago = self._rng.randint(2 * HOUR, 30 * DAY)
        self._count(self._batch(self.clock.now - ago), live=False)

    def _add_root(self) -> None:
        """A root is read for the first time, today's turns included."""
        batch = self._batch(self.clock.now - self._rng.randint(0, DAY))
        batch.history = True
        self._count(batch, live=False)

    def _restart(self) -> None:
        """End at any moment, stay away, and catch up with what has happened meanwhile."""
        self._delivering.clear()
        self.ledger.close()
        ended = self.clock.now
        self.clock.now += self._rng.choice((1_000, HOLD, 10 * HOUR))
        self._open()
        if self._rng.random() < 0.5:
            self._count(self._batch(self._rng.randint(ended, self.clock.now)), live=True)
        self._tend()

    def _count(self, batch: Batch, live: bool) -> None:
        held = frozenset[SeriesName]().union(*self.ledger.snapshot().held.values())
        self.ledger.record(batch)
        names = set(_names(batch))
        if live:
            self.live |= names - self._known
        else:
            self.mixed |= names & held
        self._known |= names

    def _batch(self, time: int) -> Batch:
        """Return some turns of one moment; their names come from a pool that grows."""
        rng, batch = self._rng, Batch()
        for _ in range(rng.randint(1, 3)):
            number = next(self._numbers)
            slug = f"shop-{rng.randint(0, number // 4)}"
            project = Project(slug, rng.choice(("", f"/home/ana/{slug}")))  # two ids, one label
            model = rng.choice((*MODELS, f"model-{number // 16}"))
            counts = [rng.choice((0, 1, 70, 9_000)) for _ in range(4)]
            role = rng.choice((Role.MAIN, Role.SUBAGENT))
            session = f"s-{rng.randint(0, number)}"
            key = message_key(f"g-{number}")
            usage = TokenUsage(1, *counts)
            batch.turns.append(Turn(key, session, role, project, model, time, usage))
            for call in range(rng.randint(0, 2)):
                tool, status = f"tool-{rng.randint(0, number // 8)}", rng.choice(tuple(Status))
                batch.calls.append(
                    ToolCall(key, call_key(f"c-{call}"), tool, status, project, model, time)
                )
        return batch


def _names(batch: Batch) -> Iterator[SeriesName]:
    """Yield the names of all series that a batch touches."""
    for turn in batch.turns:
        slug, model = turn.project.slug, turn.model
        yield "usage", slug, model, ""
        yield "prompt", "", model, ""
        priced = BOOK.rate(model, turn.time, turn.usage.prompt) is not None
        yield "cost" if priced else "unpriced", slug, model, ""
        yield "sessions", slug, "", ""
    for call in batch.calls:
        yield "tool", call.project.slug, call.model, call.tool


def _stored(world: World, audiences: Audience = EVERYBODY) -> Iterator[tuple[Key, list[Sample]]]:
    for scraper in world.scrapers:
        if scraper.audience in audiences:
            yield from scraper.stored.items()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_in_any_order_of_things_all_that_is_new_is_an_increase(tmp_path: Path, seed: int) -> None:
    """And history is none, and no value falls, whatever answers are lost on the way."""
    world = World(tmp_path, seed)
    world.run()
    live = history = 0
    for key, stored in _stored(world):
        where = (key, stored)
        assert all(one.value <= two.value for one, two in itertools.pairwise(stored)), where
        assert all(sample.value in (0, sample.truth) for sample in stored), where
        first, last = stored[0], stored[-1]
        assert last.value == last.truth, where
        if first.name in world.mixed:
            continue
        if first.name in world.live:
            assert first.value == 0, where
            live += 1
        else:
            assert first.value == first.truth, where
            history += 1
    assert live > 1_000
    assert history > 100


def test_without_a_hold_scrapers_lose_the_first_value_of_everything_new(tmp_path: Path) -> None:
    world = World(tmp_path, seed=0, hold=0)
    world.run()
    for key, stored in _stored(world, Audience.SCRAPERS):
        assert all(sample.value == sample.truth for sample in stored), (key, stored)
    lost = [
        key for key, stored in _stored(world, Audience.SCRAPERS) if stored[0].name in world.live
    ]
    assert len(lost) > 1_000
    pushed = [stored[0] for _, stored in _stored(world, Audience.RECEIVER)]
    assert all(sample.value == 0 for sample in pushed if sample.name in world.live - world.mixed)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A ledger with some history, which has been scraped."""
    calm = World(tmp_path, seed=0)
    yield calm
    calm.ledger.close()


def _turn(world: World, number: int, ago: int, path: str = "") -> Turn:
    key, time = message_key(f"h-{number}"), world.clock.now - ago
    return Turn(key, "s", Role.MAIN, Project("fresh", path), MODELS[0], time, TokenUsage(7))


def _first_seen(world: World) -> float:
    """Let it be scraped; return how many turns the first answer with the new project had."""
    scraper = world.scrapers[0]
    world.scrape(scraper)
    return scraper.stored["gemini_cli_turns", MODELS[0], "fresh"][0].value


@pytest.mark.parametrize("order", [(0, 2 * HOUR), (2 * HOUR, 0)], ids=["live first", "old first"])
def test_what_has_old_turns_before_anybody_saw_it_is_history(
    world: World, order: tuple[int, int]
) -> None:
    for number, ago in enumerate(order):
        world.ledger.record(Batch(turns=[_turn(world, number, ago)]))
    assert _first_seen(world) == 2


def test_what_has_an_old_turn_under_another_id_of_its_label_is_history(world: World) -> None:
    turns = [_turn(world, 0, 2 * HOUR), _turn(world, 1, 0, path="/home/ana/fresh")]
    world.ledger.record(Batch(turns=turns))
    assert _first_seen(world) == 2


def test_old_turns_of_what_was_seen_as_0_do_not_end_its_hold(world: World) -> None:
    world.ledger.record(Batch(turns=[_turn(world, 0, 0)]))
    assert _first_seen(world) == 0
    world.deliver()
    world.ledger.record(Batch(turns=[_turn(world, 1, 2 * HOUR)]))
    world.scrape(world.scrapers[0])
    assert world.scrapers[0].stored["gemini_cli_turns", MODELS[0], "fresh"][-1].value == 0
