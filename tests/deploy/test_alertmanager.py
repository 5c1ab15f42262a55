"""The example of routing: valid, and each alert reaches the receiver that is meant for it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from tests.deploy import test_fleet, test_rules
from tests.deploy.tools import DEPLOY, need, printed

ALERTS = test_rules.ALERTS | test_fleet.ALERTS
CONFIG = DEPLOY / "alertmanager" / "alertmanager.yaml"

RECEIVERS = {
    "GeminiCliBudgetNearlyUsed": "money",
    "GeminiCliBudgetExceeded": "money",
    "GeminiCliBudgetForecastToExceed": "money",
    "GeminiCliSpendFastBurn": "money",
    "GeminiCliSpendUnusual": "money",
    "GeminiCliUnpricedModelInUse": "money",
    "GeminiCliCacheHitRatioCollapsed": "usage",
    "GeminiCliToolErrorRatioHigh": "usage",
    "GeminiCliExporterRecordsSkipped": "exporter",
    "GeminiCliExporterBehind": "exporter",
    "GeminiCliExporterNotScanning": "exporter",
    "GeminiCliExporterLedgerNotWritable": "exporter",
    "GeminiCliExporterPushFailing": "exporter",
    "GeminiCliExporterDown": "exporter",
    "GeminiCliBudgetOfTeamNearlyUsed": "money",
    "GeminiCliBudgetOfTeamExceeded": "money",
    "GeminiCliUnpricedModelInTeam": "money",
    "GeminiCliExporterSilent": "exporter",
    "GeminiCliExporterIdentityShared": "exporter",
}


def config() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(CONFIG.read_text("utf-8"))
    return loaded


def matched(matchers: list[str]) -> set[str]:
    """Return the alerts that matchers of the form `alertname="…"` or `alertname=~"…"` match."""
    (matcher,) = matchers
    found = re.fullmatch(r'alertname=~?"(.*)"', matcher)
    assert found is not None
    return {name for name in ALERTS if re.fullmatch(found[1], name)}


def test_the_example_is_valid() -> None:
    said = printed(need("amtool"), "check-config", CONFIG)
    assert f"{len(config()['receivers'])} receivers" in said


@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_is_routed_to_its_receiver(name: str) -> None:
    labels = [f"alertname={name}", "job=gemini-cli", "instance=a"]
    labels += [f"{label}={text}" for label, text in ALERTS[name]["labels"].items()]
    test = (need("amtool"), "config", "routes", "test", f"--config.file={CONFIG}")
    assert printed(*test, *labels).split() == [RECEIVERS[name]]


def test_every_receiver_is_a_webhook_on_this_machine_until_it_is_replaced() -> None:
    receivers = {entry["name"]: entry["webhook_configs"] for entry in config()["receivers"]}
    assert receivers.keys() == set(RECEIVERS.values())
    for name, hooks in receivers.items():
        assert [hook["url"] for hook in hooks] == [f"http://127.0.0.1:5001/{name}"]


def test_what_follows_from_another_alert_is_left_out() -> None:
    (budget, team, ledger) = config()["inhibit_rules"]
    assert matched(budget["source_matchers"]) == {"GeminiCliBudgetExceeded"}
    assert matched(budget["target_matchers"]) == {
        "GeminiCliBudgetNearlyUsed",
        "GeminiCliBudgetForecastToExceed",
    }
    assert set(budget["equal"]) == {"job", "instance", "period", "project"}
    assert matched(team["source_matchers"]) == {"GeminiCliBudgetOfTeamExceeded"}
    assert matched(team["target_matchers"]) == {"GeminiCliBudgetOfTeamNearlyUsed"}
    assert set(team["equal"]) == {"team", "period"}
    assert matched(ledger["source_matchers"]) == {"GeminiCliExporterLedgerNotWritable"}
    assert matched(ledger["target_matchers"]) == {
        "GeminiCliExporterBehind",
        "GeminiCliExporterNotScanning",
    }
    assert set(ledger["equal"]) == {"job", "instance"}


def test_there_is_one_message_for_each_budget_and_one_for_all_that_have_a_trouble() -> None:
    money, exporter = config()["route"]["routes"]
    budget = {"job", "instance", "period", "project", "team"}
    assert set(money["group_by"]) == {"alertname", *budget}
    assert set(exporter["group_by"]) == {"alertname", "job"}
    assert json.dumps(config()).count("send_resolved") == 0  # A webhook hears of it by default.
