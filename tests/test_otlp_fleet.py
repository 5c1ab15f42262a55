"""A fleet: what 200 exporters push to one receiver adds up to their ledgers, team by team."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from socketserver import TCPServer
from typing import Final, NamedTuple

import pytest

from exporter.ledger.model import (
    KINDS,
    PICO,
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
from exporter.outputs.prometheus import Exposition
from exporter.outputs.push import Pusher
from exporter.outputs.receiver import Protocol, Temporality, receiver_of
from exporter.outputs.sender import Sender
from tests.otlp_points import Histogram, Point, Series
from tests.otlp_sink import GrpcSink, Inbox, Sink
from tests.outputs.pushing import Pushing
from tests.support import BOOK, Clock

FIGURES: Final = Path(__file__).parent.parent / "docs" / "fleet.md"
AT_ONCE: Final = 50
TEAMS: Final = ("atlas", "harbor", "infra", "platform", "tide")
MODELS: Final = ("gemini-2.5-flash", "gemini-2.5-pro", "nobody-prices-this")
TOKENS: Final = "gemini_cli.tokens"
COST: Final = "gemini_cli.cost.usd"
OWN: Final = "gemini_cli.exporter."
DAY: Final = 86_400_000
PATIENT, HASTY = "30000", "200"
"""Milliseconds for one request: more than any needs here, and not enough for a second attempt."""


class Way(NamedTuple):
    """How large the fleet is, and how it pushes."""

    exporters: int
    inbox: type[Inbox]
    protocol: Protocol
    temporality: Temporality


Totals = dict[tuple[str, str], float]
"""Tokens by team and kind, and USD by team and `usd`."""


class Exporter:
    """One of the fleet: a ledger that is filled by hand, and what pushes it."""

    def __init__(self, folder: Path, number: int, clock: Clock, environ: dict[str, str]) -> None:
        self.team = TEAMS[number % len(TEAMS)]
        self.tokens: Counter[str] = Counter()
        self._path = folder / f"{number}.db"
        self._number = number
        self._clock = clock
        self._turns = 0
        resource = f"team={self.team},host.name=laptop{number}"
        self._environ = environ | {"OTEL_RESOURCE_ATTRIBUTES": resource}

    def start(self, timeout: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Start as the program does; one thread writes the ledger and another one pushes."""
        self._environ["OTEL_EXPORTER_OTLP_TIMEOUT"] = timeout
        for name, text in self._environ.items():
            monkeypatch.setenv(name, text)
        self.ledger = Ledger(self._path, BOOK, self._clock)
        self.ledger.finish_scan(["/home"])
        self._stats = Stats(self._clock.now / 1000)
        self._wake = threading.Event()
        receiver = receiver_of(self._environ, None)
        self._sender = Sender(receiver)
        self._pusher = Pusher(
            self.ledger,
            Exposition(self.ledger, self._stats, self._clock).view,
            self._sender,
            receiver.interval,
            self._stats,
            self._wake,
            delta=receiver.temporality is Temporality.DELTA,
        )

    def close(self) -> None:
        """End at once, with nothing sent."""
        self._sender.close()
        self.ledger.close()

    def work(self, project: str, ago: int = 0) -> None:
        """Count a turn, `ago` milliseconds before now, with tokens that no other turn has."""
        self._turns += 1
        model, time = MODELS[self._number % len(MODELS)], self._clock.now - ago
        place = Project(project, f"/home/ana/{project}")
        message, call = message_key(f"m-{self._turns}"), call_key(f"c-{self._turns}")
        usage = TokenUsage(1_000 + self._number, self._turns, 10 + self._number, 3, 1)
        turn = Turn(message, "s", Role.MAIN, place, model, time, usage)
        called = ToolCall(message, call, "glob", Status.SUCCESS, place, model, time)
        self.ledger.record(Batch([turn], [called]))
        self.tokens.update(dict(zip(KINDS, usage, strict=True)))

    def push(self, pushers: ThreadPoolExecutor) -> bool:
        """Make one request while the ledger is tended to; return whether it was taken."""
        failures = self._stats.otlp_export_failures
        pushed = pushers.submit(self._pusher.push)
        pushed.add_done_callback(lambda _: self._wake.set())
        while not pushed.done():
            self._wake.wait()
            self._wake.clear()
            self.ledger.tend()
        pushed.result()
        return self._stats.otlp_export_failures == failures

    @property
    def usd(self) -> float:
        """What the ledger's turns cost."""
        return sum(sum(pair.cost or ()) for pair in self.ledger.snapshot().pairs.values()) / PICO


class Fleet:
    """All exporters, with laptops that are used and sleep at the same times, and the receiver."""

    def __init__(self, folder: Path, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self.inbox = way.inbox()
        self.inbox.start()
        self._monkeypatch = monkeypatch
        environ = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.inbox.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": way.protocol,
            "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": way.temporality,
        }
        self.exporters = [Exporter(folder, n, self.clock, environ) for n in range(way.exporters)]
        self._writers, self._pushers = ThreadPoolExecutor(AT_ONCE), ThreadPoolExecutor(AT_ONCE)
        self.start(PATIENT)

    def start(self, timeout: str) -> None:
        """Start all of them; they give a request so many milliseconds."""
        for exporter in self.exporters:
            exporter.start(timeout, self._monkeypatch)

    def restart(self, timeout: str) -> None:
        """End all of them at once, as if killed, and start them again."""
        for exporter in self.exporters:
            exporter.close()
        self.start(timeout)

    def work(self, work: Callable[[Exporter], None]) -> None:
        """Have all of them do something."""
        list(self._writers.map(work, self.exporters))

    def push(self) -> int:
        """Have all of them push a minute later; return how many were answered that all is well."""
        self.clock.now += 60_000
        return sum(self._writers.map(lambda exporter: exporter.push(self._pushers), self.exporters))

    def used(self) -> Totals:
        """What was invented, and what the ledgers say that it costs."""
        used: Totals = defaultdict(float)
        for exporter in self.exporters:
            for kind, tokens in exporter.tokens.items():
                used[exporter.team, kind] += tokens
            used[exporter.team, "usd"] += exporter.usd
        return used

    def close(self) -> None:
        """End all, whatever was sent."""
        for exporter in self.exporters:
            exporter.close()
        self._writers.shutdown()
        self._pushers.shutdown()
        self.inbox.stop()


@pytest.fixture(
    params=[
        Way(200, Sink, Protocol.HTTP, Temporality.CUMULATIVE),
        Way(25, Sink, Protocol.HTTP, Temporality.DELTA),
        Way(25, GrpcSink, Protocol.GRPC, Temporality.CUMULATIVE),
    ],
    ids=["http", "http-delta", "grpc"],
)
def way(request: pytest.FixtureRequest) -> Way:
    assert isinstance(request.param, Way)
    return request.param


@pytest.fixture
def fleet(way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    # As many as a receiver lets wait for it; the 5 of Python's servers are not meant for a fleet.
    monkeypatch.setattr(TCPServer, "request_queue_size", AT_ONCE)
    with closing(Fleet(tmp_path, way, monkeypatch)) as fleet:
        yield fleet


def received(points: Iterable[Point], known: Totals) -> Totals:
    """Add up what a receiver has: the last total of each series, or all differences and `known`."""
    kept: dict[tuple[Series, int, int], Point] = {}
    for point in points:
        moment = (0, 0) if point.temporality == "cumulative" else (point.start, point.time)
        kept[point.series, *moment] = point
    totals = defaultdict(float, known)
    for point in kept.values():
        if point.name in (TOKENS, COST):
            kind = dict(point.attributes)["kind"] if point.name == TOKENS else "usd"
            assert isinstance(point.value, int | float)
            totals[str(point.resource["team"]), kind] += point.value
    return totals


def check_order(points: Iterable[Point]) -> None:
    """Check that no total falls or changes its start, and that no two differences overlap.

    Totals that are born while somebody looks on begin with 0.
    """
    last: dict[Series, Point] = {}
    for point in points:
        if point.kind == "gauge" or point.name.startswith(OWN):
            continue
        before = last.get(point.series)
        last[point.series] = point
        if before is None:
            born_live = dict(point.attributes).get("project") in ("fresh", "unseen")
            assert size(point) == 0 or not born_live or point.temporality == "delta"
            continue
        assert point.time > before.time
        if point.temporality == "delta":
            assert point.start >= before.time
        else:
            assert point.start == before.start
            assert size(point) >= size(before)


def size(point: Point) -> float:
    """What must not fall: a value, or how many a histogram has counted."""
    return point.value.count if isinstance(point.value, Histogram) else point.value


def test_a_fleet_adds_up_by_team_also_after_an_outage(fleet: Fleet, way: Way) -> None:
    """Series are born before the first request, between two, and while nobody receives."""
    inbox, everyone = fleet.inbox, way.exporters
    fleet.work(lambda exporter: exporter.work("old", ago=2 * DAY))
    assert fleet.push() == everyone
    # What was there before the first request is no difference.
    known = fleet.used() if way.temporality is Temporality.DELTA else {}

    fleet.work(lambda exporter: exporter.work("old"))
    fleet.work(lambda exporter: exporter.work("fresh"))
    assert fleet.push() == everyone
    assert fleet.push() == everyone
    assert received(inbox.points, known) == pytest.approx(fleet.used(), rel=0, abs=1e-9)

    inbox.stop()
    fleet.restart(HASTY)
    fleet.work(lambda exporter: exporter.work("old"))
    fleet.work(lambda exporter: exporter.work("unseen"))
    assert fleet.push() == 0
    inbox.start()
    fleet.restart(PATIENT)
    fleet.work(lambda exporter: exporter.work("old"))
    assert fleet.push() == everyone
    assert fleet.push() == everyone
    assert received(inbox.points, known) == pytest.approx(fleet.used(), rel=0, abs=1e-9)

    check_order(inbox.points)
    sources = {
        (point.resource["service.instance.id"], point.resource["host.name"])
        for point in inbox.points
    }
    assert len({instance for instance, _ in sources}) == len(sources) == everyone


def test_the_series_of_a_laptop_are_what_the_figures_say(tmp_path: Path) -> None:
    """A histogram makes a series of each bucket, and one of its sum and one of its count."""
    pushing, batch = Pushing(tmp_path), Batch()
    with closing(pushing.ledger):
        time, used = pushing.clock.now, [("shop", 0), ("shop", 1), ("docs", 1)]
        for number, (slug, model) in enumerate(used):
            place, message = Project(slug, f"/home/ana/{slug}"), message_key(str(number))
            usage = TokenUsage(1, 2, 3, 4, 5)
            batch.turns.append(Turn(message, "s", Role.MAIN, place, MODELS[model], time, usage))
            for tool in ("glob", "replace"):
                call = call_key(tool)
                called = ToolCall(message, call, tool, Status.SUCCESS, place, MODELS[model], time)
                batch.calls.append(called)
        pushing.ledger.record(batch)
        points = pushing.push()
    series: Counter[bool] = Counter()
    for (name, _), point in points.items():
        buckets = len(point.value.buckets) + 2 if isinstance(point.value, Histogram) else 1
        series[name.startswith((OWN, "gemini_cli.period_"))] += buckets
    pairs, triples, models, projects = 3, 6, 2, 2
    assert series[False] == 12 * pairs + 3 * triples + 18 * models + 7 * projects
    assert "12 × pairs + 3 × triples + 18 × models + 7 × projects" in FIGURES.read_text()
