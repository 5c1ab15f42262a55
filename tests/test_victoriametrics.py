"""VictoriaMetrics scrapes exporters with a past: what its functions make of a first start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import pytest

from exporter.demo.records import iso
from tests.day import PICO, RATES
from tests.program import Program
from tests.prometheus import Prometheus
from tests.support import dumps, gemini, header
from tests.victoriametrics import VictoriaMetrics, needs_victoriametrics

pytestmark = [needs_victoriametrics, pytest.mark.timeout(180)]

HISTORIES: Final = (5, 50, 500)
"""What the exporters' histories cost, in USD, and a turn more."""

COST: Final = "gemini_cli_cost_usd_total"
DAY_MS: Final = 86_400_000


class Exporter(Program):
    """One with a home in which `past` USD have been spent before it is started for the first time.

    `spent` are its turns: when (milliseconds since the epoch), and what they cost (pico-USD).
    """

    def __init__(self, folder: Path, past: int) -> None:
        folder.mkdir()
        super().__init__(folder, [folder / ".gemini"])
        self._command += ["--web.zero-first-hold", "1500ms", "--budget.timezone", "UTC"]
        self._tmp = folder / ".gemini" / "tmp"
        self._rng = Random(past)
        self.spent: list[tuple[int, int]] = []
        now = time.time_ns() // 10**6
        while self.usd < past:
            project = self._rng.choice(("shop", "docs", "site"))
            self.turn(project, now - self._rng.randrange(2 * 3_600_000, 20 * DAY_MS))

    def turn(self, project: str, at: int) -> float:
        """Record a turn; return what it costs in USD."""
        rng = self._rng
        model = rng.choice(("gemini-2.5-flash", "gemini-2.5-pro"))
        fresh, cached, output, thoughts, tool = (
            rng.randrange(most) for most in (150_000, 40_000, 9_000, 3_000, 500)
        )
        record = gemini(
            f"g-{len(self.spent)}",
            fresh + cached,
            output,
            cached=cached,
            thoughts=thoughts,
            tool=tool,
            model=model,
            time=iso(at),
        )
        path = self._tmp / project / "chats" / "session-a.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.writelines(dumps(line) + b"\n" for line in (header(project), record))
        prices = RATES[model]
        cost = (fresh + tool) * prices[0] + cached * prices[1] + (output + thoughts) * prices[2]
        self.spent.append((at, cost))
        return cost / PICO

    @property
    def usd(self) -> float:
        """What all turns cost."""
        return sum(cost for _, cost in self.spent) / PICO

    def since(self, start: float) -> float:
        """Return what the turns since a time (seconds) cost in USD."""
        return sum(cost for at, cost in self.spent if at >= start * 1000) / PICO


class Seen(NamedTuple):
    """What VictoriaMetrics says of one exporter, in USD, by the name of a query."""

    first: dict[str, float]
    live: dict[str, float]
    past: float
    turn: float
    values: list[float]
    """The first value of each series of the cost."""
    gauges: dict[str, tuple[float, float]]
    """The event-time gauges by period, and the truth of each."""


QUERIES: Final = {
    "increase": f"sum(increase({COST}{{instance='%s'}}[10m]))",
    "increase_prometheus": f"sum(increase_prometheus({COST}{{instance='%s'}}[10m]))",
    "new, increase": f"sum(increase({COST}{{instance='%s',project='lab'}}[10m]))",
    "new, increase_prometheus": (
        f"sum(increase_prometheus({COST}{{instance='%s',project='lab'}}[10m]))"
    ),
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, Seen]]:
    """Exporters are scraped from their first start on; then each has a turn in a new project."""
    folder = tmp_path_factory.mktemp("first")
    with ExitStack() as running:
        exporters = {
            past: running.enter_context(Exporter(folder / f"{past}", past)) for past in HISTORIES
        }
        for exporter in exporters.values():
            exporter.start()
        for exporter in exporters.values():
            exporter.metrics()
        addresses = {
            past: exporter.wait_for_address().removeprefix("http://")
            for past, exporter in exporters.items()
        }
        targets = {"gemini": list(addresses.values())}
        server = running.enter_context(
            VictoriaMetrics(folder / "victoria", targets, interval="500ms")
        )
        for _ in range(3):
            server.scraped()
        past = {key: exporter.usd for key, exporter in exporters.items()}
        first = {key: asked(server, address) for key, address in addresses.items()}
        values = {
            key: [
                float(series["value"][1])
                for series in server.query(f"{COST}{{instance='{address}'}}")
            ]
            for key, address in addresses.items()
        }
        turns = {
            key: exporter.turn("lab", time.time_ns() // 10**6)
            for key, exporter in exporters.items()
        }
        server.wait_for(f"count(sum by (instance) ({COST}{{project='lab'}}) > 0) == 3")
        server.scraped()
        yield {
            key: Seen(
                first[key],
                asked(server, addresses[key]),
                past[key],
                turns[key],
                values[key],
                gauges(server, addresses[key], exporter),
            )
            for key, exporter in exporters.items()
        }


def asked(server: Prometheus, address: str) -> dict[str, float]:
    return {name: server.value(query % address) or 0.0 for name, query in QUERIES.items()}


def gauges(server: Prometheus, address: str, exporter: Exporter) -> dict[str, tuple[float, float]]:
    """Return the spending of each period as the gauges say it, and as it was."""
    selector = f"{{instance='{address}'}}"
    begun = server.query(f"gemini_cli_period_start_timestamp_seconds{selector}")
    starts = {series["metric"]["period"]: float(series["value"][1]) for series in begun}
    found = {
        series["metric"]["period"]: (float(series["value"][1]), exporter.since(start))
        for series in server.query(f"sum by (period) (gemini_cli_spend_usd{selector})")
        for start in [starts[series["metric"]["period"]]]
    }
    hour = server.value(f"sum(gemini_cli_spend_last_hour_usd{selector})")
    assert hour is not None
    return found | {"hour": (hour, exporter.since(time.time() - 3600))}


def test_the_figures_of_a_first_start(seen: dict[int, Seen]) -> None:
    """What the page on VictoriaMetrics says of them is printed by -s."""
    for each in seen.values():
        print(
            f"history {each.past:.2f}: increase {each.first['increase']:.2f},"
            f" increase_prometheus {each.first['increase_prometheus']:.2f};"
            f" then a turn of {each.turn:.4f}: increase {each.live['increase']:.4f},"
            f" increase_prometheus {each.live['increase_prometheus']:.4f};"
            f" spend_usd {each.gauges['month'][0]:.4f}, in truth {each.gauges['month'][1]:.4f}"
        )
    assert seen[5].first["increase"] == pytest.approx(seen[5].past)
    assert seen[50].first["increase"] > 10
    assert 1 < seen[500].first["increase"] < 100


@pytest.mark.parametrize("past", HISTORIES)
def test_increase_takes_a_first_value_below_10_for_an_increase_from_0(
    seen: dict[int, Seen], past: int
) -> None:
    """Of each series by itself, so a history of many small series is counted in whole."""
    small = sum(value for value in seen[past].values if value < 10)
    assert sum(seen[past].values) == pytest.approx(seen[past].past)
    assert seen[past].first["increase"] == pytest.approx(small)


@pytest.mark.parametrize("past", HISTORIES)
def test_increase_prometheus_takes_no_history_for_an_increase(
    seen: dict[int, Seen], past: int
) -> None:
    assert seen[past].first["increase_prometheus"] == 0


@pytest.mark.parametrize("past", HISTORIES)
def test_what_is_new_is_seen_from_its_first_turn_on(seen: dict[int, Seen], past: int) -> None:
    """It is shown as 0 first, so every function sees it rise."""
    live, turn = seen[past].live, pytest.approx(seen[past].turn)
    assert live["increase_prometheus"] == turn
    assert live["new, increase_prometheus"] == turn
    assert live["new, increase"] == turn


@pytest.mark.parametrize("past", HISTORIES)
def test_gauges_are_exact_from_the_first_scrape_on(seen: dict[int, Seen], past: int) -> None:
    assert set(seen[past].gauges) == {"day", "week", "month", "hour"}
    for said, spent in seen[past].gauges.values():
        assert said == pytest.approx(spent, rel=1e-9)


@pytest.mark.parametrize(
    ("first", "second", "counted"),
    [(9, 9, 9), (10, 10, 0), (900, 1_000, 1_000), (2_000, 2_100, 100)],
)
def test_a_first_value_counts_if_it_is_below_10_times_the_next_rise_and_1(
    tmp_path: Path, first: int, second: int, counted: int
) -> None:
    with VictoriaMetrics(tmp_path, {}) as server:
        at = time.time_ns() // 10**6 - 120_000
        for number, value in enumerate((first, second)):
            server.take_in(b"tokens_total %d\n" % value, at=at + number * 60_000)
        assert server.value("increase(tokens_total[1h])") == counted
        assert server.value("increase_prometheus(tokens_total[1h])") == second - first
