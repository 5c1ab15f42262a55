"""History that a real Prometheus took in joins what it scraped: differences are the ledger's."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from exporter.demo import Plan, write_home
from exporter.ledger.model import KINDS, PICO
from exporter.outputs.history import JOIN_MS
from tests.daemon import PATIENCE
from tests.past import take_in, write_history
from tests.program import Program
from tests.prometheus import Prometheus, needs_prometheus
from tests.support import dumps, gemini, header

pytestmark = needs_prometheus

JOB = "gemini-cli"
DAYS = 3
TURNS = "gemini_cli_turns_total"
TOKENS = "gemini_cli_tokens_total"
COST = "gemini_cli_cost_usd_total"

Key = tuple[str, ...]


class Stored(NamedTuple):
    """What Prometheus holds of some counters, by kind, model and project, and the ledger's rises.

    Times are milliseconds since the epoch; `end` is when history ends, `settled` a time at which
    everything had been scraped.
    """

    prometheus: Prometheus
    tokens: dict[Key, list[tuple[int, float]]]
    cost: dict[Key, list[tuple[int, float]]]
    ledger: dict[Key, list[tuple[int, int, int]]]
    end: int
    settled: int


def raw(prometheus: Prometheus, name: str) -> dict[Key, list[tuple[int, float]]]:
    """Return every stored sample of a counter."""
    found: dict[Key, list[tuple[int, float]]] = {}
    for series in prometheus.query(f'{name}{{job="{JOB}"}}[{DAYS + 3}d]'):
        labels = series["metric"]
        key = (labels["kind"], labels["model"], labels["project"])
        assert key not in found, "history and scrapes must be the same series"
        found[key] = [(round(at * 1000), float(text)) for at, text in series["values"]]
    return found


def spent(path: Path) -> dict[Key, list[tuple[int, int, int]]]:
    """Return time, tokens and pico-USD of each turn by kind, model and project."""
    found: dict[Key, list[tuple[int, int, int]]] = {}
    query = (
        "SELECT t.*, m.label AS model_label, p.label AS project_label, r.input AS input_price,"
        " r.cached AS cached_price, r.output AS output_price FROM turn t"
        " JOIN model m ON m.id = t.model JOIN project p ON p.id = t.project"
        " JOIN rate r ON r.id = t.rate WHERE role != 2"
    )
    with closing(sqlite3.connect(path)) as db:
        db.row_factory = sqlite3.Row
        for row in db.execute(query):
            for kind in KINDS:
                price = {"thoughts": "output", "tool": "input"}.get(kind, kind)
                rise = (row["time"], row[kind], row[kind] * row[f"{price}_price"])
                found.setdefault((kind, row["model_label"], row["project_label"]), []).append(rise)
    return found


def append(path: Path, *records: Any) -> None:
    with path.open("ab") as file:
        file.writelines(dumps(record) + b"\n" for record in records)


def reply(number: int) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return gemini(f"live-{number}", 1_000 + number, 50, cached=10, thoughts=7, time=now)


def noted(path: Path) -> int:
    """Return when a scraper was first answered, as soon as the ledger holds it."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with closing(sqlite3.connect(path)) as db:
            row = db.execute("SELECT value FROM meta WHERE key = 'scraped'").fetchone()
        if row:
            return int(row[0])
        time.sleep(0.05)
    raise AssertionError("no scrape was noted")


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    """A Prometheus that scraped the program for a while and then took in what was before."""
    folder = tmp_path_factory.mktemp("history")
    end = datetime.now(UTC) - timedelta(minutes=20)
    plan = Plan(end, projects=2, sessions=5, subagents=1, turns=100, turn_bytes=4_000, days=DAYS)
    write_home(folder, plan)
    root = folder / ".gemini"
    transcript = root / "tmp" / "live" / "chats" / "session-live.jsonl"
    transcript.parent.mkdir(parents=True)
    before = reply(0) | {"timestamp": f"{end:%Y-%m-%dT%H:%M:%S}.000Z"}
    append(transcript, header("live"), before)
    ledger = folder / "ledger.db"
    with Program(folder, [root]) as program:
        program.start()
        program.metrics()
        address = program.wait_for_address().removeprefix("http://")
        with Prometheus(folder / "prometheus", {JOB: [address]}, interval="200ms") as prometheus:
            prometheus.scraped()
            for number in range(1, 4):
                append(transcript, reply(number))
                prometheus.scraped()
            scraped = noted(ledger)
            text = folder / "history.om"
            write_history(ledger, text, JOB, address)
            append(transcript, reply(4))
            program.metrics(lambda metrics: metrics.by_label(TURNS, "project").get("live") == 5)
            prometheus.scraped()
            settled = time.time_ns() // 10**6
            prometheus.stop()
            take_in(text, folder / "prometheus" / "data")
            prometheus.start()
            yield Stored(
                prometheus,
                raw(prometheus, TOKENS),
                raw(prometheus, COST),
                spent(ledger),
                scraped - JOIN_MS,
                settled,
            )


def at(samples: Sequence[tuple[int, float]], moment: int) -> float:
    """Return the latest value at a moment, 0 before the first."""
    return next((value for time, value in reversed(samples) if time <= moment), 0)


def test_stored_differences_over_any_range_are_those_of_the_ledger(stored: Stored) -> None:
    assert set(stored.tokens) == set(stored.cost) == set(stored.ledger)
    rng = Random(7)
    first = min(time for rises in stored.ledger.values() for time, *_ in rises)
    for key, rises in stored.ledger.items():
        edges = [rng.randrange(first - 60_000, stored.end) for _ in range(60)]
        # Between two scrapes it is only known that something happened, not when: so ranges end in
        # the history, or when all was scraped.
        for low, high in [*pairwise(edges), *((edge, stored.settled) for edge in edges)]:
            low, high = min(low, high), max(low, high)
            inside = [rise for rise in rises if low < rise[0] <= high]
            tokens = at(stored.tokens[key], high) - at(stored.tokens[key], low)
            cost = at(stored.cost[key], high) - at(stored.cost[key], low)
            assert tokens == sum(count for _, count, _ in inside)
            assert cost == pytest.approx(sum(pico for *_, pico in inside) / PICO, rel=0, abs=1e-9)


def test_stored_values_rise_at_the_millisecond_of_a_turn(stored: Stored) -> None:
    for key, rises in stored.ledger.items():
        moments = [
            time
            for (_, old), (time, new) in pairwise(stored.tokens[key])
            if old < new and time <= stored.end
        ]
        assert moments == sorted({time for time, count, _ in rises if count and time <= stored.end})


def test_no_series_falls_where_history_and_scrapes_meet(stored: Stored) -> None:
    for samples in [*stored.tokens.values(), *stored.cost.values()]:
        assert all(old <= new for (_, old), (_, new) in pairwise(samples))
        assert samples[0][1] == 0
        assert samples[0][0] <= stored.end < samples[-1][0]


def test_increase_over_long_ranges_is_close_to_the_truth(stored: Stored) -> None:
    """It stretches what it saw to the edges of its range, by half the time between two samples."""
    for hours in (24, DAYS * 24 + 12):
        at_end = stored.end / 1000
        tokens = stored.prometheus.value(f"sum(increase({TOKENS}[{hours}h]))", at_end)
        cost = stored.prometheus.value(f"sum(increase({COST}[{hours}h]))", at_end)
        inside = [
            rise
            for rises in stored.ledger.values()
            for rise in rises
            if stored.end - hours * 3_600_000 < rise[0] <= stored.end
        ]
        assert tokens == pytest.approx(sum(count for _, count, _ in inside), rel=0.05)
        assert cost == pytest.approx(sum(pico for *_, pico in inside) / PICO, rel=0.05)


def test_prometheus_takes_the_blocks_without_complaint(stored: Stored) -> None:
    assert stored.prometheus.log == ""
