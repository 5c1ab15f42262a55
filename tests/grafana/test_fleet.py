"""The fleet's dashboard keeps the rules of all, and asks the rules of the fleet for money."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from grafana.asking import Window, everything, panels
from grafana.build import FOLDER, build
from tests.deploy.tools import DEPLOY, need
from tests.grafana import test_lint as lint
from tests.grafana.conftest import load

Model = dict[str, Any]

TARGET = lint.TARGET | {"team", "owner", "host"}
RULES = {
    rule["record"]: set(re.split("_", rule["record"].partition(":")[0]))
    for group in yaml.safe_load((DEPLOY / "fleet" / "rules.yaml").read_text())["groups"]
    for rule in group["rules"]
    if "record" in rule
}
"""What the rules record, with the labels that it has."""

_SELECTOR = re.compile(r"(?<![\w:])([a-z_0-9]+(?::\w+:\w+)?)\{([^}]*)\}")
_SHARED: list[Callable[[Model], None]] = [
    lint.test_the_model_is_classic_and_says_how_it_is_shown,
    lint.test_panels_have_ids_of_their_own_and_do_not_overlap,
    lint.test_links_lead_to_the_other_dashboards_and_keep_time_and_variables,
    lint.test_each_choice_is_of_several_or_all_and_follows_the_time_range,
    lint.test_the_data_source_is_always_the_chosen_one,
    lint.test_windows_are_those_of_the_dashboard,
    lint.test_every_panel_says_what_it_shows,
    lint.test_what_is_money_is_called_an_estimate,
    lint.test_units_are_few_and_amounts_begin_at_0,
    lint.test_ratios_are_not_averages_of_ratios,
]


@pytest.fixture
def fleet() -> Model:
    return load("fleet")


@pytest.mark.parametrize("rule", _SHARED, ids=lambda rule: str(rule.__name__))
def test_it_keeps_the_rules_of_all(fleet: Model, rule: Callable[[Model], None]) -> None:
    rule(fleet)


def test_the_committed_file_is_what_the_code_makes() -> None:
    assert (FOLDER / "fleet.json").read_text() == build()["fleet.json"]


def test_it_has_an_address_of_its_own(fleet: Model) -> None:
    assert fleet["uid"] == "gemini-cli-fleet"


def test_team_owner_and_host_come_after_the_variables_of_all(fleet: Model) -> None:
    names = [variable["name"] for variable in fleet["templating"]["list"]]
    assert names[:5] == [each["name"] for each in load("health")["templating"]["list"]]
    assert names[5:] == ["team", "owner", "host"]
    chosen = everything(fleet)
    assert {chosen[name] for name in ("team", "owner", "host")} == {".*"}


def test_every_selector_is_by_all_of_the_choices_that_it_can_be_by(fleet: Model) -> None:
    """What is recorded by team can be by team only; the hidden choices are not used."""
    for panel, target in lint.targets(fleet):
        found = _SELECTOR.findall(target["expr"])
        assert found
        for metric, matchers in found:
            can = TARGET & RULES.get(metric, TARGET)
            chosen = dict(re.findall(r'(\w+)=~"\$(\w+)"', matchers))
            assert set(chosen) == set(chosen.values()) == can, panel["title"]


def test_every_metric_and_label_is_of_the_catalogue_or_of_the_rules(fleet: Model) -> None:
    labels = lint.LABELS | RULES
    for expr in lint.queries(fleet):
        known = set(TARGET)
        for metric, matchers in _SELECTOR.findall(expr):
            known |= labels[metric]
            assert set(re.findall(r"(\w+)=", matchers)) <= labels[metric] | TARGET, expr
        grouped = re.findall(r"(?:by|on) \(([^)]*)\)", expr)
        assert {name for names in grouped for name in names.split(", ")} <= known, expr


def test_money_is_what_the_rules_count_once(fleet: Model) -> None:
    for panel, target in lint.targets(fleet):
        if re.search(r"today|week|month|last hour|budget", panel["title"], re.IGNORECASE):
            recorded = {metric for metric, _ in _SELECTOR.findall(target["expr"])}
            assert recorded <= RULES.keys(), panel["title"]


def test_a_team_leads_to_itself_and_an_exporter_to_its_overview(fleet: Model) -> None:
    links = {
        override["matcher"]["options"]: each["value"][0]["url"]
        for panel in panels(fleet)
        for override in panel["fieldConfig"]["overrides"]
        for each in override["properties"]
        if each["id"] == "links"
    }
    assert links["Team"].startswith(f"/d/{fleet['uid']}?")
    assert "var-team=${__value.raw:percentencode}" in links["Team"]
    assert links["Instance"].startswith(f"/d/{load('overview')['uid']}?")
    assert "var-instance=${__value.raw:percentencode}" in links["Instance"]


def test_every_query_is_valid_promql(fleet: Model, tmp_path: Path) -> None:
    filled = [
        Window(0, 86_400).fill(target["expr"], 60, everything(fleet))
        for _, target in lint.targets(fleet)
    ]
    rules = [{"record": f"query:{number}", "expr": expr} for number, expr in enumerate(filled)]
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"groups": [{"name": "fleet", "rules": rules}]}))
    subprocess.run([need("promtool"), "check", "rules", path], check=True)
