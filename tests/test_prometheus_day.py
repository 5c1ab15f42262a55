"""A day in front of real Prometheus servers: what they store is what was spent."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.day import HOUR, PICO, Key, Scribe, Served, differing, stored
from tests.prometheus import Prometheus, needs_prometheus

INTERVAL: Final = "1s"
HOLD: Final = "4s"
ROOM: Final = 250
"""Samples that the job with a limit takes beyond those of the first scrape."""

FLASH: Final = "gemini-2.5-flash"
PRO: Final = "gemini-2.5-pro"
LITE: Final = "gemini-2.5-flash-lite"


class Target(NamedTuple):
    """A server, and the job and the address by which it scrapes."""

    server: Prometheus
    job: str
    address: str

    def scraped(self) -> None:
        """Return once it has stored a scrape that began after this call."""
        up = f'up{{job="{self.job}",instance="{self.address}"}}'
        self.server.wait_for(f"(timestamp({up}) > {time.time():.3f}) and {up} == 1")

    def stored(self) -> dict[Key, list[float]]:
        """Return all samples that are stored of it, none of them less than the one before."""
        samples = stored(*self)
        falls = {
            key: values
            for key, values in samples.items()
            if any(after < before for before, after in pairwise(values))
        }
        assert falls == {}
        return samples


class Day:
    """The exporter and another without zero-first beside it, and three servers.

    The first server scrapes it by both of its addresses, once more by one of them, and once more
    under a limit of samples. The second scrapes it and the other one. The third is away for a part
    of the day.
    """

    def __init__(self, folder: Path, running: ExitStack) -> None:
        self.scribe = Scribe()
        self._root, self._attic = folder / "gemini", folder / "attic"
        self._exporter = running.enter_context(Served(folder / "exporter", HOLD))
        self._other = running.enter_context(Served(folder / "other", "0s"))
        self._write("shop", FLASH, turns=3, calls=[("ls", "success")], ago=7 * 24 * HOUR)
        self._write("blog", "made-up-1", turns=2, ago=24 * HOUR)
        self.scribe.begin()
        self._exporter.live([self._root])
        self._other.live([self._root])
        self._exporter.shows(self.scribe.shown())

        one, two = self._exporter.addresses
        limit = {
            "job_name": "limited",
            "sample_limit": len(self._exporter.samples()) + ROOM,
            "static_configs": [{"targets": [one]}],
        }
        jobs = [
            Prometheus(
                folder / "1", {"both": [one, two], "twin": [one]}, interval=INTERVAL, scrape=[limit]
            ),
            Prometheus(
                folder / "2",
                {"only": [one], "other": self._other.addresses[:1]},
                interval=INTERVAL,
            ),
            Prometheus(folder / "3", {"only": [one]}, interval=INTERVAL),
        ]
        first, second, self._third = map(running.enter_context, jobs)
        self.always = [
            Target(first, "both", one),
            Target(first, "both", two),
            Target(first, "twin", one),
            Target(second, "only", one),
        ]
        self.limited = Target(first, "limited", one)
        self.other = Target(second, "other", self._other.addresses[0])
        self.sleeper = Target(self._third, "only", one)
        self.missed: set[Key] = set()
        """What was born while the third server was away."""
        self._awake = [*self.always, self.other, self.sleeper]
        for target in [*self._awake, self.limited]:
            target.scraped()

    def pass_by(self) -> None:
        """Play the day."""
        self._begin_new_things()
        self._hang_up()
        before = self.scribe.totals.keys() | set()
        self._awake.remove(self.sleeper)
        self._third.stop()
        self._write("missed", PRO, calls=[("web", "success")])
        self._write("shop", FLASH)
        self._settle()
        self._end_and_kill()
        self.missed = self.scribe.totals.keys() - before
        self._third.start()
        self._awake.append(self.sleeper)
        self.sleeper.scraped()
        self._write("late", LITE, calls=[("ls", "success")])
        self._write("missed", PRO)
        self._settle()
        self._restore()
        self._add_root()
        self._relabel()

    def _begin_new_things(self) -> None:
        """A model and tools that are new in an old project, and a new project."""
        self._write("shop", PRO, calls=[("grep", "error"), ("ls", "success")])
        self._write("fresh", FLASH, turns=2, calls=[("edit", "cancelled")])
        self._write("fresh", "made-up-2")
        self._look_while_held()
        self._write("fresh", FLASH)
        self._settle()

    def _look_while_held(self) -> None:
        """A person is shown the truth, and a scraper 0 where it would be something new."""
        self._exporter.shows(self.scribe.shown())
        hidden = differing(self._exporter.values(scraper=True), self.scribe.shown())
        assert {shown for shown, _ in hidden.values()} == {0}

    def _hang_up(self) -> None:
        """A connection is dropped after its request, before and while something new is held."""
        self._exporter.dropped_scrape()
        self._write("dropped", "made-up-2", calls=[("ls", "error")])
        for _ in range(3):
            self._exporter.dropped_scrape()
        self._settle()

    def _end_and_kill(self) -> None:
        """Each time something new is held, something happens meanwhile, and files are gone."""
        self._write("evening", PRO)
        assert self._exporter.stop() == 0
        self._write("night", FLASH, turns=2, calls=[("ls", "success")])
        self._exporter.live([self._root])
        self._settle()
        gone = self._write("killed", LITE, calls=[("rm", "error")])
        self._look_while_held()
        self._exporter.kill()
        gone.unlink()
        self._write("shop", LITE)
        self._exporter.live([self._root])
        self._look_while_held()
        self._settle()

    def _restore(self) -> None:
        """Old transcripts come back into the known root; then people go on there."""
        self._write("back", "made-up-3", turns=2, calls=[("ls", "error")], ago=3 * HOUR, live=False)
        self._settle()
        self._write("back", "made-up-3", calls=[("ls", "error")])
        self._settle()

    def _add_root(self) -> None:
        """A root that is new holds turns of last week."""
        week = 7 * 24 * HOUR
        self._write("attic", "made-up-4", turns=2, ago=week, live=False, root=self._attic)
        assert self._exporter.stop() == 0
        self._exporter.live([self._root, self._attic])
        self._settle()

    def _relabel(self) -> None:
        """Projects are shown under other names; then people go on, in a new one too."""
        assert self._exporter.stop() == 0
        self.scribe.relabel()
        self._exporter.live([self._root, self._attic], "--labels.project", "path")
        self._settle()
        self._write("shop", PRO, calls=[("grep", "success")])
        self._write("last", FLASH)
        self._settle()

    def _write(self, project: str, model: str, *, root: Path | None = None, **more: Any) -> Path:
        return self.scribe.write(root or self._root, project, model, **more)

    def _settle(self) -> None:
        """Wait until everything is shown, and has been stored by all who are there."""
        self._exporter.shows(self.scribe.shown())
        self._exporter.settles()
        for target in self._awake:
            target.scraped()


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    """A day that has passed."""
    with ExitStack() as running:
        passed = Day(tmp_path_factory.mktemp("day"), running)
        passed.pass_by()
        yield passed


pytestmark = [needs_prometheus, pytest.mark.timeout(300)]


def increases(samples: dict[Key, list[float]]) -> dict[Key, float]:
    """Return what each series gained from its first sample to its last."""
    return {key: values[-1] - values[0] for key, values in samples.items()}


def test_what_servers_store_adds_up_to_what_was_spent(day: Day) -> None:
    """And history is no increase: what a series began with is not in the sums."""
    for target in day.always:
        assert differing(increases(target.stored()), day.scribe.gained()) == {}


def test_a_server_that_was_away_misses_only_what_was_born_meanwhile(day: Day) -> None:
    samples = day.sleeper.stored()
    gained = increases(samples)
    assert {
        key: pair
        for key, pair in differing(gained, day.scribe.gained()).items()
        if key not in day.missed
    } == {}
    last = {key: values[-1] for key, values in samples.items()}
    assert differing(last, day.scribe.ends()) == {}


def test_a_scrape_that_is_refused_spoils_nothing_for_others(day: Day) -> None:
    """The job with a limit was told of new series before, and has whole increases until then."""
    target = day.limited
    assert target.server.value(f'up{{job="{target.job}"}}') == 0
    known, everything = increases(target.stored()), day.scribe.gained()
    assert set(known) < set(everything)
    assert all(known[key] <= everything[key] + 1e-9 for key in known)
    assert any(values[0] == 0 < values[-1] for values in target.stored().values())


def test_without_zero_first_much_would_be_lost(day: Day) -> None:
    found, kept = Counter[str](), Counter[str]()
    for key, gained in increases(day.other.stored()).items():
        found[key[0]] += round(gained * (PICO if "_usd" in key[0] else 1))
    for key, gained in increases(day.always[0].stored()).items():
        kept[key[0]] += round(gained * (PICO if "_usd" in key[0] else 1))
    print()
    for name in ("gemini_cli_tokens", "gemini_cli_cost_usd", "gemini_cli_tool_calls"):
        spent = day.scribe.lived[name]
        unit = PICO if "_usd" in name else 1
        print(
            f"{name}: spent {spent / unit:,.10g}, stored {kept[name] / unit:,.10g},"
            f" without zero-first {found[name] / unit:,.10g} ({1 - found[name] / spent:.0%} lost)"
        )
        assert kept[name] == spent
        assert found[name] < spent
