"""Every query of every dashboard answered by a real Prometheus that scrapes real exporters."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from exporter.demo import Plan, write_home
from grafana.asking import Window, ask, everything, panels, values
from tests.grafana.conftest import NAMES, load
from tests.program import Program
from tests.prometheus import Prometheus, needs_prometheus
from tests.support import dumps, gemini, header

pytestmark = [needs_prometheus, pytest.mark.timeout(180)]

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

EARLY = "nothing is forecast before a fifth of the month is over"
MAY_BE_EMPTY = {
    ("overview", "Month at this pace", "A"): EARLY,
    ("overview", "Budget used", "D"): EARLY,
    ("health", "File errors by reason", "A"): "all files can be read",
}
"""Targets that a healthy system need not answer, and why; they must not fail either."""

NOT_BY_PROJECT = {
    ("overview", "Projects", "E"): "a budget of a project needs the label",
    ("project", "Project budget used", "A"): "a budget of a project needs the label",
    ("project", "Project budget used", "B"): "a budget of a project needs the label",
    ("project", "Project budget used", "C"): "a budget of a project needs the label",
}
"""What more may be empty where the exporter leaves the label project out."""

NOT_BY_MODEL = {
    ("overview", "Models", "F"): "a model with a price has no unpriced tokens",
    ("project", "Models", "F"): "a model with a price has no unpriced tokens",
}
"""What more may be empty of one model."""


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
    """A Prometheus that has scraped two exporters, of which one leaves the label project out."""

    prometheus: Prometheus
    window: Window
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


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Days of history, then live turns that Prometheus sees one after the other."""
    folder = tmp_path_factory.mktemp("stack")
    end = datetime.now(UTC) - timedelta(minutes=1)
    plan = Plan(end, projects=4, sessions=24, subagents=4, turns=400, days=6, turn_bytes=4_000)
    home = folder / "home"
    write_home(home, plan)
    with (
        Exporter(folder / "a", home) as labelled,
        Exporter(folder / "b", home, "--labels.project", "none") as unlabelled,
    ):
        addresses = []
        for program in (labelled, unlabelled):
            program.start()
            addresses.append(program.wait_for_address().removeprefix("http://"))
            program.metrics()
        jobs = {"gemini": addresses}
        with Prometheus(folder / "prometheus", jobs, interval="250ms") as prometheus:
            prometheus.scraped()
            start = math.floor(time.time())
            path = home / f".gemini/tmp/{SHOP}/chats/session-live.jsonl"
            path.write_bytes(dumps(header("11ve0000-0001")) + b"\n{broken\n")
            before = _turns(prometheus)
            for number in range(4):
                with path.open("ab") as file:
                    file.writelines(live(2 * number) + live(2 * number + 1, unpriced=True))
                expected = before + 4 * (number + 1)
                prometheus.wait_for(f"sum(gemini_cli_turns_total) >= {expected}")
                prometheus.scraped()
            prometheus.wait_for("sum(gemini_cli_exporter_series_held) == 0")
            prometheus.scraped()
            window = Window(start, math.ceil(time.time()), points=30, scrape=1)
            yield Stack(prometheus, window, *addresses)


def _turns(prometheus: Prometheus) -> float:
    count = prometheus.value("sum(gemini_cli_turns_total)")
    assert count
    return count


def numbers(series: list[dict[str, Any]]) -> list[float]:
    """All values that are numbers."""
    points = [point for each in series for point in each.get("values") or [each["value"]]]
    return [float(text) for _, text in points if not math.isnan(float(text))]


def answers(stack: Stack, name: str, chosen: dict[str, str]) -> dict[tuple[str, str, str], int]:
    """How many numbers each target of a dashboard gets."""
    model = load(name)
    found = {}
    for panel in panels(model):
        # A least interval of minutes has no point in the seconds that a test takes.
        panel = {**panel, "interval": ""}
        got = ask(stack.prometheus, panel, stack.window, everything(model) | chosen)
        for ref, series in got.items():
            found[name, panel["title"], ref] = len(numbers(series))
    return found


def empty(found: dict[tuple[str, str, str], int]) -> set[tuple[str, str, str]]:
    return {target for target, count in found.items() if not count}


@pytest.mark.parametrize("name", NAMES)
def test_every_target_of_every_panel_has_data(stack: Stack, name: str) -> None:
    assert empty(answers(stack, name, {})) <= MAY_BE_EMPTY.keys()


@pytest.mark.parametrize("name", NAMES)
def test_every_target_has_data_of_one_exporter_project_and_model(stack: Stack, name: str) -> None:
    chosen = {"instance": stack.labelled, "project": SHOP, "model": "gemini-2.5-pro"}
    assert empty(answers(stack, name, chosen)) <= MAY_BE_EMPTY.keys() | NOT_BY_MODEL.keys()


@pytest.mark.parametrize("name", NAMES)
def test_every_target_has_data_where_the_label_project_is_left_out(stack: Stack, name: str) -> None:
    found = answers(stack, name, {"instance": stack.unlabelled})
    assert empty(found) <= MAY_BE_EMPTY.keys() | NOT_BY_PROJECT.keys()


def test_what_may_be_empty_is_there() -> None:
    known = {
        (name, panel["title"], target["refId"])
        for name in NAMES
        for panel in panels(load(name))
        for target in panel["targets"]
    }
    assert {*MAY_BE_EMPTY, *NOT_BY_PROJECT, *NOT_BY_MODEL} <= known


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_has_values(stack: Stack, name: str) -> None:
    model = load(name)
    found = {
        variable["name"]: values(stack.prometheus, variable, everything(model))
        for variable in model["templating"]["list"][1:]
    }
    assert found["job"] == ["gemini"]
    assert found["instance"] == sorted([stack.labelled, stack.unlabelled])
    assert SHOP in found["project"]
    assert {"gemini-2.5-pro", "gemini-of-tomorrow"} <= set(found["model"])


def test_the_spend_of_all_exporters_is_the_sum_of_each(stack: Stack) -> None:
    model = load("overview")
    (panel,) = (panel for panel in panels(model) if panel["title"] == "Spent this month")

    def spent(instance: str) -> float:
        chosen = everything(model) | {"instance": instance}
        (number,) = numbers(ask(stack.prometheus, panel, stack.window, chosen)["A"])
        return number

    assert spent(".+") == pytest.approx(spent(stack.labelled) + spent(stack.unlabelled))
    assert spent(stack.labelled) == pytest.approx(spent(stack.unlabelled))
