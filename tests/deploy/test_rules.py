"""The Prometheus rules: valid, tested by promtool, on metrics that exist, with a runbook each."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter.outputs.catalog import CATALOG
from exporter.outputs.metric import Type

from .tools import need

PROJECT = Path(__file__).parents[2]
FOLDER = PROJECT / "deploy" / "prometheus"
FILES = sorted(FOLDER.glob("*.yaml"))
TESTS = sorted((FOLDER / "tests").glob("*.yaml"))
EXACT = [path for path in TESTS if "exact threshold" in path.read_text()]

_METRIC = re.compile(r"(?<![\w:])gemini_cli_\w+")
_LABELS = re.compile(r"(?:by|on|without|ignoring) \(([^)]*)\)|(\w+)\s*(?:=~|!~|!=|=)\s*\"")
_TARGET_LABELS = {"job", "instance"}
_THRESHOLD = re.compile(r"(>=|>|<) ([\d.]+)(?=  # threshold)")
_FLIPPED = {">=": ">", ">": ">=", "<": "<="}

CASES = {"fires", "does not fire", "exact threshold", "gap", "reset", "two instances"}
"""What the names of an alert's test groups must say in all."""

Rule = dict[str, Any]


def rules() -> Iterator[dict[str, Any]]:
    for path in FILES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}


def run(*command: str | Path, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_valid() -> None:
    run(need("promtool"), "check", "rules", *FILES, cwd=FOLDER)


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.stem))
def test_the_rules_do_what_their_tests_say(path: Path) -> None:
    run(need("promtool"), "test", "rules", path.name, cwd=path.parent)


def cases() -> dict[str, list[dict[str, Any]]]:
    """Return the test groups of each alert: their names begin with those they test."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ALERTS}
    for path in TESTS:
        for test in yaml.safe_load(path.read_text())["tests"]:
            for name in test["name"].partition(":")[0].split(", "):
                found[name].append(test)
    return found


@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_is_tested_in_all_respects(name: str) -> None:
    tests = cases()[name]
    expected = [
        case.get("exp_alerts", [])
        for test in tests
        for case in test["alert_rule_test"]
        if case["alertname"] == name
    ]
    assert any(expected)
    assert not all(expected)
    assert all("exp_annotations" in alert for alerts in expected for alert in alerts)
    told = {fact for test in tests for fact in re.split(r", |; ", test["name"].partition(": ")[2])}
    assert all(instances(test) > 1 for test in tests if "two instances" in test["name"])
    counters = {test["name"] for test in tests if "_total{" in json.dumps(test["input_series"])}
    assert told >= (CASES | {"born at zero"} if counters else CASES)


def instances(test: dict[str, Any]) -> int:
    """Return how many exporters a test group plays."""
    found = (re.search(r'instance="(\w+)"', series["series"]) for series in test["input_series"])
    return len({match[1] for match in found if match})


def mutants(rule: Rule) -> Iterator[Rule]:
    """Yield the alert with each of its numbers changed so that an exact test must notice."""
    for match in _THRESHOLD.finditer(rule["expr"]):
        operator, number = match[1], Decimal(match[2])
        step = number / 10 if 0 < number < 2 else Decimal(1)
        # Towards what the tests have just beyond the threshold.
        moved = number + step if operator == ">" else number - step
        for change in (f"{_FLIPPED[operator]} {number}", f"{operator} {moved}"):
            yield {**rule, "expr": _put(rule["expr"], match, change)}
    if wait := _minutes(rule.get("for")):
        yield {**rule, "for": "0m"}
        yield {**rule, "for": f"{4 * wait}m"}


def _put(expr: str, match: re.Match[str], text: str) -> str:
    return expr[: match.start()] + text + expr[match.end() :]


@pytest.mark.parametrize("path", EXACT, ids=lambda path: str(path.stem))
def test_no_number_of_an_alert_can_change_unnoticed(path: Path, tmp_path: Path) -> None:
    """Changed copies of the alerts, under names of their own, all fail the tests of the alert."""
    suite = yaml.safe_load(path.read_text())
    changed: dict[str, Rule] = {}
    for test in suite["tests"]:
        checks = test.pop("alert_rule_test")
        test.pop("promql_expr_test", None)
        test["alert_rule_test"] = []
        for name in {check["alertname"] for check in checks}:
            for number, rule in enumerate(mutants(ALERTS[name])):
                copy = f"{name}_{number}"
                changed[copy] = {**rule, "alert": copy}
                test["alert_rule_test"] += [
                    {**check, "alertname": copy} for check in checks if check["alertname"] == name
                ]
    assert changed
    order = suite.setdefault("group_eval_order", [])
    order.append("changed")
    recorded = [
        group
        for group in yaml.safe_load((FOLDER / "gemini-cli-rules.yaml").read_text())["groups"]
        if group["name"] in order
    ]
    groups = [*recorded, {"name": "changed", "rules": list(changed.values())}]
    (tmp_path / "rules.json").write_text(json.dumps({"groups": groups}))  # JSON is YAML
    suite["rule_files"] = ["rules.json"]
    suite["group_eval_order"] = [group["name"] for group in groups]
    (tmp_path / "suite.json").write_text(json.dumps(suite))
    done = subprocess.run(
        [need("promtool"), "test", "rules", "suite.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    failed = set(re.findall(r"alertname: (\w+), time:", done.stdout + done.stderr))
    assert set(changed) - failed == set(), done.stderr[:2_000]
    assert failed <= set(changed)


def test_every_metric_and_label_is_in_the_catalogue() -> None:
    suffixes = {
        Type.COUNTER: ("_total",),
        Type.GAUGE: ("",),
        Type.HISTOGRAM: ("_bucket", "_count", "_sum"),
    }
    shown = {metric.name + end for metric in CATALOG for end in suffixes[metric.type]}
    labels = {label for metric in CATALOG for label in metric.labels} | _TARGET_LABELS
    for rule in rules():
        recorded = re.sub(r"\w+:gemini_cli_\w+:\w+", "", rule["expr"])
        assert set(_METRIC.findall(recorded)) <= shown, rule
        for listed, matched in _LABELS.findall(rule["expr"]):
            names = {name.strip() for name in (listed or matched).split(",")}
            assert names <= labels, rule


def test_every_recording_rule_is_used_and_every_used_one_is_recorded() -> None:
    used = set(re.findall(r"\w+:gemini_cli_\w+:\w+", " ".join(rule["expr"] for rule in rules())))
    assert used == {rule["record"] for rule in rules() if "record" in rule}


def test_a_recording_rule_is_named_after_the_labels_that_it_keeps() -> None:
    for rule in rules():
        level = rule.get("record", "").partition(":")[0]
        for kept in re.findall(r"(?:sum|max) by \(([^)]*)\)", rule["expr"]):
            assert level in ("", kept.replace(", ", "_"))


def test_every_alert_waits_for_two_evaluations_unless_what_was_spent_stays_spent() -> None:
    hasty = set()
    for path in FILES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                if "alert" in rule and _minutes(rule.get("for")) < 2 * _minutes(group["interval"]):
                    hasty.add(rule["alert"])
    assert hasty == {"GeminiCliBudgetNearlyUsed", "GeminiCliBudgetExceeded"}


def _minutes(duration: str | None) -> int:
    return 0 if duration is None else int(duration.removesuffix("m"))


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_what_it_is_and_has_a_runbook(name: str) -> None:
    rule = ALERTS[name]
    assert name.startswith("GeminiCli")
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    notes = rule["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url"}
    assert "{{" not in notes["summary"]
    assert "$labels.instance" in notes["description"]
    page, _, anchor = notes["runbook_url"].partition("#")
    assert anchor == name.lower()
    assert f"\n## {name}\n" in (PROJECT / page).read_text()


def test_alerts_about_money_use_event_time_only() -> None:
    for name, rule in ALERTS.items():
        if name.startswith(("GeminiCliBudget", "GeminiCliSpend")):
            assert "increase(" not in rule["expr"]
            assert "rate(" not in rule["expr"]


def test_no_alert_takes_a_laptop_that_sleeps_for_one_that_is_down() -> None:
    assert [name for name, rule in ALERTS.items() if re.search(r"\bup\b", rule["expr"])] == [
        "GeminiCliExporterDown"
    ]
    assert 'job=~"gemini-cli-servers"' in ALERTS["GeminiCliExporterDown"]["expr"]
