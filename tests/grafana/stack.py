"""A Prometheus that holds the imported history of a demonstration's home, and scrapes on top."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from exporter.demo import Plan, write_home
from grafana.asking import Window
from tests.past import take_in, write_history
from tests.program import Program
from tests.prometheus import Prometheus
from tests.support import dumps, gemini, header

JOB = "gemini"
DAYS = 3
TURNS = 400
ROUNDS = 4
"""Of two live turns each, between which Prometheus scrapes."""

SHOP = "harbor-api"
"""The project that live turns are written in and that has a budget."""

CONFIG = {
    "budget": {
        "day": 20,
        "week": 100,
        "month": 300,
        "timezone": "UTC",
        "projects": {SHOP: {"day": 5, "week": 20, "month": 50}},
    },
    "web": {"zero-first-hold": "1s"},
}


class Exporter(Program):
    """One that has budgets."""

    def __init__(self, folder: Path, home: Path, *argv: str) -> None:
        folder.mkdir()
        super().__init__(folder, [home / ".gemini"])
        config = folder / "exporter.yml"
        config.write_text(json.dumps(CONFIG))
        self._command += ["--config.file", str(config), *argv]


@dataclass(frozen=True, slots=True)
class Stack:
    """A Prometheus that has scraped two exporters, of which one leaves the label project out.

    It has the past of the other one, too. `window` is from before the first turn to now, `scraped`
    when scraping began, in seconds since the epoch.
    """

    prometheus: Prometheus
    window: Window
    scraped: float
    labelled: str
    unlabelled: str


def live(number: int, unpriced: bool = False) -> list[bytes]:
    """One reply with tool calls, as it is written now; the second has a long prompt."""
    calls = [
        (f"{number}-1", "read_file", "success"),
        (f"{number}-2", "run_shell_command", "error"),
        (f"{number}-3", "write_file", "cancelled"),
    ]
    record = gemini(
        f"live-{number}",
        input=250_000 if number % 2 else 9_000,
        output=900,
        cached=5_000,
        thoughts=300,
        tool=20,
        model="gemini-of-tomorrow" if unpriced else "gemini-2.5-pro",
        time=datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        calls=calls,
    )
    return [dumps(record) + b"\n"]


@contextmanager
def running(folder: Path) -> Iterator[Stack]:
    """Import days of history, then write live turns that are scraped one after the other."""
    end = datetime.now(UTC) - timedelta(minutes=1)
    plan = Plan(end, projects=4, sessions=24, subagents=4, turns=TURNS, days=DAYS, turn_bytes=4_000)
    home = folder / "home"
    write_home(home, plan)
    with (
        Exporter(folder / "a", home) as labelled,
        Exporter(folder / "b", home, "--labels.project", "none") as unlabelled,
    ):
        for program in (labelled, unlabelled):
            program.start()
        addresses = [
            program.wait_for_address().removeprefix("http://") for program in (labelled, unlabelled)
        ]
        for program in (labelled, unlabelled):
            program.metrics()
        history, blocks = folder / "history.om", folder / "prometheus" / "data"
        write_history(folder / "a" / "ledger.db", history, JOB, addresses[0])
        take_in(history, blocks)
        scraped = time.time()
        with Prometheus(folder / "prometheus", {JOB: addresses}, interval="250ms") as prometheus:
            prometheus.scraped()
            path = home / f".gemini/tmp/{SHOP}/chats/session-live.jsonl"
            path.write_bytes(dumps(header("11ve0000-0001")) + b"\n{broken\n")
            before = _turns(prometheus)
            for number in range(ROUNDS):
                with path.open("ab") as file:
                    file.writelines(live(2 * number) + live(2 * number + 1, unpriced=True))
                expected = before + 4 * (number + 1)
                prometheus.wait_for(f"sum(gemini_cli_turns_total) >= {expected}")
                prometheus.scraped()
            prometheus.wait_for("sum(gemini_cli_exporter_series_held) == 0")
            prometheus.scraped()
            yield Stack(prometheus, days_until(math.ceil(time.time())), scraped, *addresses)


def days_until(end: int) -> Window:
    """A window of days with a point every ten minutes, as near as makes the last one its end.

    Grafana's points are whole multiples of their distance; only the last one is after scraping
    began, as it takes seconds.
    """
    step = end / (end // 600)
    points = math.ceil((DAYS + 1) * 86_400 / step)
    return Window(end - points * step, end, points, scrape=1)


def _turns(prometheus: Prometheus) -> float:
    count = prometheus.value("sum(gemini_cli_turns_total)")
    assert count
    return count
