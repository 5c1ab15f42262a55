"""Every query of the fleet's dashboard answered by a real Prometheus with the fleet's rules.

It scrapes three exporters with the labels that the collector makes of resource attributes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from exporter.demo import Plan, write_home
from grafana.asking import Series, Window, ask, everything, panels, values
from tests.deploy.test_alert_end_to_end import hurried
from tests.deploy.tools import DEPLOY
from tests.grafana.conftest import load
from tests.program import Program
from tests.prometheus import Prometheus, needs_prometheus
from tests.support import dumps, gemini, header

pytestmark = [needs_prometheus, pytest.mark.timeout(180)]

FLEET = [
    {"team": "platform", "owner": "ana", "host": "laptop7"},
    {"team": "platform", "owner": "bo", "host": "laptop8"},
    {"team": "design", "owner": "cy", "host": "laptop9"},
]
COUNTED = "job_instance_team_owner_host_period:gemini_cli_spend_usd:counted"

MAY_BE_EMPTY = {
    ("Team budgets used", "A"): "the rules come without a budget of a day",
    ("Team budgets used", "B"): "the rules come without a budget of a week",
}
"""Targets that need not be answered, and why."""


class Exporter(Program):
    """One whose new series are 0 for a second only."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, [home / ".gemini"])
        self._command += ["--web.zero-first-hold", "1s"]


@dataclass(frozen=True, slots=True)
class Stack:
    """A Prometheus that has scraped the fleet; `instances` are in the order of FLEET."""

    prometheus: Prometheus
    window: Window
    instances: list[str]


def live(number: int, model: str) -> bytes:
    """A reply that is written now."""
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return dumps(gemini(f"live-{number}", 9_000, 900, model=model, time=now)) + b"\n"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Each exporter has a day of its own, then a turn with a price and one without."""
    folder = tmp_path_factory.mktemp("fleet")
    end = datetime.now(UTC) - timedelta(minutes=1)
    programs, chats = [], []
    for number, labels in enumerate(FLEET):
        home = folder / labels["host"]
        home.mkdir()
        plan = Plan(
            end,
            projects=2,
            sessions=4,
            subagents=0,
            turns=40,
            days=1,
            seed=number,
            turn_bytes=2_000,
        )
        write_home(home, plan)
        chats.append(home / ".gemini/tmp/harbor-api/chats/session-live.jsonl")
        chats[-1].parent.mkdir(parents=True, exist_ok=True)
        programs.append(Exporter(home))
    rules = folder / "rules.yaml"
    rules.write_text(hurried((DEPLOY / "fleet" / "rules.yaml").read_text()))
    with programs[0], programs[1], programs[2]:
        for program in programs:
            program.start()
        instances = [each.wait_for_address().removeprefix("http://") for each in programs]
        for program in programs:
            program.metrics()
        static = [
            {"targets": [instance], "labels": labels}
            for instance, labels in zip(instances, FLEET, strict=True)
        ]
        scrape = [{"job_name": "gemini-cli-exporter", "static_configs": static}]
        with Prometheus(
            folder / "prometheus", {}, rules=[rules], interval="250ms", scrape=scrape
        ) as prometheus:
            prometheus.scraped()
            start = math.floor(time.time())
            before = prometheus.value("sum(gemini_cli_turns_total)") or 0
            for number, chat in enumerate(chats):
                chat.write_bytes(dumps(header(f"11ve0000-000{number}")) + b"\n")
            for turn, model in enumerate(("gemini-2.5-pro", "gemini-of-tomorrow")):
                for number, chat in enumerate(chats):
                    with chat.open("ab") as file:
                        file.write(live(10 * number + turn, model))
                expected = before + len(FLEET) * (turn + 1)
                prometheus.wait_for(f"sum(gemini_cli_turns_total) >= {expected}")
            prometheus.wait_for("sum(gemini_cli_exporter_series_held) == 0")
            prometheus.wait_for("sum(increase(gemini_cli_cost_usd_total[1m])) > 0")
            now = f"timestamp({COUNTED}) > {time.time():.3f}"
            prometheus.wait_for(f"count({now}) and sum(team_model:gemini_cli_cost_usd:rate1h) > 0")
            window = Window(start, math.ceil(time.time()), points=30, scrape=1)
            yield Stack(prometheus, window, instances)


def answers(stack: Stack, chosen: dict[str, str]) -> dict[tuple[str, str], Series]:
    """What each target is answered, while some variables are chosen."""
    model = load("fleet")
    return {
        (panel["title"], ref): series
        for panel in panels(model)
        # A least interval of minutes has no point in the seconds that a test takes.
        for ref, series in ask(
            stack.prometheus,
            {**panel, "interval": ""},
            stack.window,
            everything(model) | chosen,
        ).items()
    }


def empty(found: dict[tuple[str, str], Series]) -> set[tuple[str, str]]:
    return {target for target, series in found.items() if not numbers(series)}


def numbers(series: Series) -> list[float]:
    points = [point for each in series for point in each.get("values") or [each["value"]]]
    return [float(text) for _, text in points if not math.isnan(float(text))]


def by_label(series: Series, label: str) -> dict[str, float]:
    return {each["metric"][label]: float(each["value"][1]) for each in series}


def test_every_target_of_every_panel_has_data(stack: Stack) -> None:
    assert empty(answers(stack, {})) == MAY_BE_EMPTY.keys()


def test_every_target_has_data_of_one_laptop(stack: Stack) -> None:
    chosen = {"instance": stack.instances[0], **FLEET[0]}
    assert empty(answers(stack, chosen)) == MAY_BE_EMPTY.keys()


@pytest.mark.parametrize("label", ["team", "owner", "host"])
def test_every_variable_has_values_that_those_before_it_leave(stack: Stack, label: str) -> None:
    model = load("fleet")
    (variable,) = (each for each in model["templating"]["list"] if each["name"] == label)
    every = {labels[label] for labels in FLEET}
    assert set(values(stack.prometheus, variable, everything(model))) == every
    of_design = values(stack.prometheus, variable, everything(model) | {"team": "design"})
    assert set(of_design) == (every if label == "team" else {FLEET[2][label]})


def test_the_variables_of_all_dashboards_have_values_too(stack: Stack) -> None:
    variables = {each["name"]: each for each in load("fleet")["templating"]["list"]}
    chosen = everything(load("fleet"))
    assert set(values(stack.prometheus, variables["instance"], chosen)) == set(stack.instances)
    assert values(stack.prometheus, variables["job"], chosen) == ["gemini-cli-exporter"]


def test_teams_add_up_to_what_their_exporters_say(stack: Stack) -> None:
    expected: dict[str, float] = {}
    for labels, instance in zip(FLEET, stack.instances, strict=True):
        selector = f'gemini_cli_spend_usd{{instance="{instance}",period="month"}}'
        spent = stack.prometheus.value(f"sum({selector})", stack.window.end)
        assert spent
        expected[labels["team"]] = expected.get(labels["team"], 0) + spent
    found = answers(stack, {})
    assert by_label(found["Teams", "C"], "team") == pytest.approx(expected)
    ((_, whole),) = [each["value"] for each in found["Spent this month", "A"]]
    assert float(whole) == pytest.approx(sum(expected.values()))
    used = by_label(found["Team budgets used", "C"], "team")
    assert used == pytest.approx({"platform": expected["platform"] / 2_000})


def test_a_choice_of_owner_or_host_leaves_the_others_out(stack: Stack) -> None:
    for label in ("owner", "host"):
        found = answers(stack, {label: FLEET[1][label]})
        (spent,) = numbers(found["Spent this month", "A"])
        assert by_label(found["Hosts", "C"], "host") == {"laptop8": spent}
        assert numbers(found["Exporters", "A"]) == [1]


def test_the_exporters_are_listed_with_what_leads_to_their_own_dashboard(stack: Stack) -> None:
    series = answers(stack, {})["Exporters by last heard", "B"]
    found: list[dict[str, Any]] = sorted((each["metric"] for each in series), key=_host)
    assert found == [
        {"job": "gemini-cli-exporter", "instance": instance, **labels}
        for labels, instance in zip(FLEET, stack.instances, strict=True)
    ]


def _host(labels: dict[str, str]) -> str:
    return labels["host"]
