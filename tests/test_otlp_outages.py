"""Ended, killed and cut off while it pushes: the receiver has what was spent, once.

GEMINI_CLI_EXPORTER_TEST_LIVES sets how often it is ended, and by that how.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from typing import Any, Final, Self

import pytest

from tests.day import Key, Scribe, differing, key_of
from tests.otlp_points import Histogram, Point
from tests.otlp_program import DAY, MODELS, PROTOCOL, TEMPORALITY, TIMEOUT, Pushing, until
from tests.otlp_sink import Sink
from tests.program import PATIENCE, once
from tests.rotel import Rotel, needs_rotel

LIVES: Final = int(os.environ.get("GEMINI_CLI_EXPORTER_TEST_LIVES", "2"))


def is_usage(point: Point) -> bool:
    return point.kind != "gauge" and not point.name.startswith("gemini_cli.exporter.")


def values(point: Point) -> Iterator[tuple[Key, float]]:
    """Yield what a point of a counter says, as series of an exposition."""
    name, labels, value = point.name.replace(".", "_"), dict(point.attributes), point.value
    if not isinstance(value, Histogram):
        yield key_of(name, labels), value
        return
    edges = (*value.bounds, float("inf"))
    for edge, count in zip(edges, accumulate(value.buckets), strict=True):
        yield key_of(f"{name}_bucket", {**labels, "le": str(edge)}), count
    yield key_of(f"{name}_sum", labels), value.sum
    yield key_of(f"{name}_count", labels), value.count


class Received:
    """The usage counters that a receiver has, each point once, in the order of their times."""

    def __init__(self, points: Iterable[Point]) -> None:
        distinct = {
            (point.series, point.start, point.time): point for point in points if is_usage(point)
        }
        self._samples: dict[Key, list[tuple[int, int, float]]] = defaultdict(list)
        for point in sorted(distinct.values(), key=lambda point: point.time):
            for key, value in values(point):
                self._samples[key].append((point.start, point.time, value))

    def latest(self) -> dict[Key, float]:
        """Return the last values."""
        return {key: samples[-1][2] for key, samples in self._samples.items()}

    def increases(self) -> dict[Key, float]:
        """Return by how much each series grew from its first value to its last, as Prometheus."""
        return {key: samples[-1][2] - samples[0][2] for key, samples in self._samples.items()}

    def sums(self) -> dict[Key, float]:
        """Return what differences add up to, those that are not 0."""
        sums = {key: sum(value for *_, value in of) for key, of in self._samples.items()}
        return without_zeros(sums)

    def check_totals(self) -> None:
        """Fail if a start ever changed, or a value fell."""
        for key, samples in self._samples.items():
            assert len({start for start, *_ in samples}) == 1, key
            assert all(old <= new for (*_, old), (*_, new) in pairwise(samples)), key

    def check_differences(self) -> None:
        """Fail if two differences of one series cover the same time."""
        for key, samples in self._samples.items():
            assert all(end <= start for (_, end, _), (start, *_) in pairwise(samples)), key


def as_key(name: Any, *labels: Any) -> Key:
    """Return the key of a counter as `Metrics.counters` calls it."""
    return key_of(name, dict(labels))


def without_zeros(found: Mapping[Key, float]) -> dict[Key, float]:
    return {key: value for key, value in found.items() if value}


class Writer:
    """Appends turns to old and new projects, all the time, until it ends."""

    def __init__(self, root: Path, scribe: Scribe, rng: Random) -> None:
        self._root, self._scribe, self._rng = root, scribe, rng
        self._wanted: deque[str] = deque()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def bear(self, project: str) -> None:
        """Return once a project has its first turn."""
        self._wanted.append(project)
        until(lambda: not self._wanted, "the writer has ended")

    def _run(self) -> None:
        while not self._stop.wait(self._rng.random() * 0.04):
            chosen = self._wanted[0] if self._wanted else self._project()
            statuses = self._rng.choice(((), ("success",), ("error", "cancelled")))
            calls = [("read_file", status) for status in statuses]
            turns = self._rng.randint(1, 3)
            model = self._rng.choice(MODELS)
            self._scribe.write(self._root, chosen, model, turns=turns, calls=calls)
            if self._wanted and chosen == self._wanted[0]:
                self._wanted.popleft()

    def _project(self) -> str:
        return self._rng.choice(("shop", "web", f"new-{self._rng.randrange(30)}"))


class Run:
    """The program, a collector and a receiver behind it, in good times and bad."""

    def __init__(self, folder: Path, protocol: str, temporality: str) -> None:
        self.rng = Random(LIVES)
        self.delta = temporality == "delta"
        self.folder, self.root = folder / "exporter", folder / "gemini"
        self.folder.mkdir()
        self.scribe = Scribe()
        for project in ("shop", "web"):
            for model in MODELS:
                self.scribe.write(self.root, project, model, turns=5, ago=DAY, live=False)
        self.scribe.begin()
        self.sink = Sink()
        self.sink.start()
        self.rotel = Rotel(folder / "rotel", self.sink)
        self.rotel.start()
        address = self.rotel.grpc_address if protocol == "grpc" else self.rotel.address
        environ = {PROTOCOL: protocol, TEMPORALITY: temporality, TIMEOUT: "1000"}
        self.program = Pushing(
            self.folder, self.root, "--otlp.endpoint", f"http://{address}", environ=environ
        )

    def close(self) -> None:
        self.program.kill()
        self.rotel.stop()
        self.sink.stop()

    def live_through_everything(self) -> None:
        """Begin in peace, then end, be killed and be cut off while turns are written."""
        self.program.start()
        self.sink.wait_for_requests(2)
        with Writer(self.root, self.scribe, self.rng) as writer:
            self.sink.stop()  # the collector keeps what it takes
            writer.bear("born-unseen")
            self._pause(0.3)
            self.sink.start()
            self._pause(0.5)
            self._end_quietly()
            self.rotel.stop()
            writer.bear("born-while-nobody-looked")
            self.program.start()
            self.program.logged("cannot push")
            writer.bear("born-cut-off")
            self._pause(0.3)
            self._end()
            self.program.start()
            self.rotel.start()
            for life in range(LIVES):
                writer.bear(f"born-in-life-{life}")
                self._pause(1.5)
                self._end()
                writer.bear(f"born-after-life-{life}")
                self.program.start()
            self._pause(0.5)
        self._await_all()
        assert self.program.stop() == 0

    def _await_all(self) -> None:
        end = time.monotonic() + PATIENCE
        while (wrong := self.wrong()) and time.monotonic() < end:
            time.sleep(0.1)
        assert wrong == {}, self.program.log

    def wrong(self) -> dict[Key, tuple[object, object]]:
        """Return what the receiver has and should not, or has not and should."""
        received = Received(self.sink.points)
        if self.delta:
            return differing(received.sums(), without_zeros(self.scribe.gained()))
        return differing(received.latest(), self.scribe.ends())

    def _pause(self, most: float) -> None:
        time.sleep(self.rng.random() * most)

    def _end(self) -> None:
        """End the program in one of two ways."""
        if self.rng.random() < 0.6:
            self.program.kill()
        else:
            self.program.wait_for_address()
            assert self.program.stop() == 0

    def _end_quietly(self) -> None:
        """End the program; what the collector took goes on, since it keeps it in memory only."""
        self._end()
        seen = -1
        while seen != (seen := len(self.sink.requests)):
            time.sleep(0.3)


@needs_rotel
@pytest.mark.timeout(60 + 10 * LIVES)
@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_the_receiver_has_what_was_spent_whatever_happened(
    tmp_path: Path, protocol: str, temporality: str
) -> None:
    """Since the first push, and as totals before that too; `once` shows the same."""
    run = Run(tmp_path, protocol, temporality)
    try:
        run.live_through_everything()
    finally:
        run.close()
    assert run.wrong() == {}
    received = Received(run.sink.points)
    if run.delta:
        received.check_differences()
    else:
        received.check_totals()
        assert differing(received.increases(), run.scribe.gained()) == {}
        shown = once(run.folder, run.root).metrics.counters
        ledger = {as_key(*series): value for series, value in shown.items()}
        latest = received.latest()
        assert differing({key: latest[key] for key in ledger}, ledger) == {}
    assert sum(run.scribe.lived.values()) > 500
