"""The fleet's files: rules tested by promtool, a whole collector, laptops that push to it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.otlp_program import Pushing
from tests.otlp_sink import Sink
from tests.support import dumps, gemini, header
from tests.victoriametrics import translated

from .test_rules import CASES, instances, mutants, run
from .tools import DEPLOY, PROJECT, need, printed

FOLDER = DEPLOY / "fleet"
RULES = FOLDER / "rules.yaml"
TESTS = sorted((FOLDER / "tests").glob("*.yaml"))
EXACT = [path for path in TESTS if "exact threshold" in path.read_text()]
GUIDE = (PROJECT / "docs" / "fleet.md").read_text()

Rule = dict[str, Any]

_RECORDED = r"\w+:gemini_cli_\w+:\w+"


def groups() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
    return found


def rules() -> Iterator[Rule]:
    return (rule for group in groups() for rule in group["rules"])


ALERTS = {rule["alert"]: rule for rule in rules() if "alert" in rule}


def test_the_rules_are_valid_for_prometheus() -> None:
    run(need("promtool"), "check", "config", FOLDER / "prometheus.yml", cwd=FOLDER)


def test_the_rules_are_valid_for_victoriametrics(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(translated(RULES.read_text()))
    printed(need("vmalert"), "-dryRun", f"-rule={path}")


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.stem))
def test_the_rules_do_what_their_tests_say(path: Path) -> None:
    run(need("promtool"), "test", "rules", path.name, cwd=path.parent)


@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_is_tested_in_all_respects(name: str) -> None:
    tests = [
        test
        for path in TESTS
        for test in yaml.safe_load(path.read_text())["tests"]
        if name in test["name"].partition(":")[0].split(", ")
    ]
    told = {fact for test in tests for fact in re.split(r", |; ", test["name"].partition(": ")[2])}
    assert told >= CASES
    assert all(instances(test) > 1 for test in tests if "two instances" in test["name"])
    expected = [
        case.get("exp_alerts", [])
        for test in tests
        for case in test["alert_rule_test"]
        if case["alertname"] == name
    ]
    assert any(expected)
    assert not all(expected)
    assert all("exp_annotations" in alert for alerts in expected for alert in alerts)


@pytest.mark.parametrize("path", EXACT, ids=lambda path: str(path.stem))
def test_no_number_of_an_alert_can_change_unnoticed(path: Path, tmp_path: Path) -> None:
    """Changed copies of the alerts, under names of their own, all fail the tests of the alert."""
    suite = yaml.safe_load(path.read_text())
    suite["tests"] = [test for test in suite["tests"] if "alert_rule_test" in test]
    changed: dict[str, Rule] = {}
    exact: set[str] = set()
    for test in suite["tests"]:
        checks, test["alert_rule_test"] = test["alert_rule_test"], []
        for name in {check["alertname"] for check in checks}:
            if "exact threshold" in test["name"]:
                exact.add(name)
            for number, rule in enumerate(mutants(ALERTS[name])):
                changed[f"{name}_{number}"] = {**rule, "alert": f"{name}_{number}"}
                test["alert_rule_test"] += [
                    {**check, "alertname": f"{name}_{number}"}
                    for check in checks
                    if check["alertname"] == name
                ]
    recorded = [group for group in groups() if any("record" in rule for rule in group["rules"])]
    all_groups = [*recorded, {"name": "changed", "rules": list(changed.values())}]
    (tmp_path / "rules.json").write_text(json.dumps({"groups": all_groups}))
    suite["rule_files"] = ["rules.json"]
    suite["group_eval_order"] = [group["name"] for group in all_groups]
    (tmp_path / "suite.json").write_text(json.dumps(suite))
    done = subprocess.run(
        [need("promtool"), "test", "rules", "suite.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    failed = set(re.findall(r"alertname: (\w+), time:", done.stdout + done.stderr))
    expected = {copy for copy in changed if copy.rpartition("_")[0] in exact}
    assert expected
    assert expected - failed == set()


def test_every_recording_rule_is_used_and_every_used_one_is_recorded() -> None:
    asked = [rule["expr"] for rule in rules()]
    dashboard = (PROJECT / "grafana" / "dashboards" / "fleet.json").read_text()
    used = set(re.findall(_RECORDED, " ".join((*asked, dashboard))))
    assert used == {rule["record"] for rule in rules() if "record" in rule}


def test_a_recording_rule_is_named_after_the_labels_that_it_keeps() -> None:
    for rule in rules():
        level = rule.get("record", "").partition(":")[0]
        outer = re.match(r"(?:sum|max) by \(([^)]*)\)", rule["expr"])
        if level and outer:
            assert level == outer[1].replace(", ", "_")


def test_budgets_are_marked_constants_of_a_team_and_a_period() -> None:
    budgets = [rule for rule in rules() if "budget_usd:constant" in rule.get("record", "")]
    assert budgets
    assert all(set(rule["labels"]) == {"team", "period"} for rule in budgets)
    assert RULES.read_text().count("# budget: USD") == len(budgets)


def test_money_comes_from_event_time() -> None:
    for rule in rules():
        if "budget" in rule.get("record", "") or "Budget" in rule.get("alert", ""):
            assert not re.search(r"increase|rate\(", rule["expr"])


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_what_it_is_and_has_a_runbook(name: str) -> None:
    rule = ALERTS[name]
    assert name.startswith("GeminiCli")
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    notes = rule["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url"}
    assert "{{" not in notes["summary"]
    page, _, anchor = notes["runbook_url"].partition("#")
    assert anchor == name.lower()
    assert f"\n## {name}\n" in (PROJECT / page).read_text()


def collector() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "collector.yaml").read_text())
    return found


def test_each_part_of_the_collector_is_declared_and_used() -> None:
    config = collector()
    service = config["service"]
    for kind in ("receivers", "processors", "exporters"):
        used = [name for pipeline in service["pipelines"].values() for name in pipeline[kind]]
        assert set(used) == set(config[kind])
    assert set(service["extensions"]) == set(config["extensions"])
    assert set(service["pipelines"]) == {"metrics"}
    order = service["pipelines"]["metrics"]["processors"]
    assert (order[0], order[-1]) == ("memory_limiter", "batch")


def test_nobody_pushes_without_tls_and_the_token() -> None:
    config = collector()
    for protocol in config["receivers"]["otlp"]["protocols"].values():
        assert set(protocol["tls"]) == {"cert_file", "key_file"}
        assert protocol["auth"]["authenticator"] in config["extensions"]


def test_what_is_secret_or_of_one_place_is_a_variable_that_the_guide_explains() -> None:
    text = (FOLDER / "collector.yaml").read_text()
    variables = set(re.findall(r"\$\{env:(\w+)", text))
    assert variables == {
        "FLEET_TOKEN",
        "FLEET_TLS_CERT",
        "FLEET_TLS_KEY",
        "REMOTE_WRITE_URL",
        "REMOTE_WRITE_TENANT",
    }
    assert {name for name in variables if f"`{name}`" not in GUIDE} == set()
    assert "://" not in text
    secrets = re.findall(r"(?:token|cert_file|key_file): (.*)", text)
    assert all(re.fullmatch(r"\$\{env:\w+\}", secret) for secret in secrets)


def test_points_get_their_labels_before_the_resource_loses_them() -> None:
    """In one group, the first point would take the attributes away from the second."""
    points, resource = collector()["processors"]["transform"]["metric_statements"]
    assert (points["context"], resource["context"]) == ("datapoint", "resource")
    set_ = r'set\(datapoint\.attributes\["(\w+)"\], resource\.attributes\["([\w.]+)"\]\)'
    found = [re.match(set_, statement) for statement in points["statements"]]
    assert [match and match.groups() for match in found] == [
        ("team", "team"),
        ("owner", "owner"),
        ("host", "host.name"),
    ]
    (statement,) = resource["statements"]
    assert re.findall(r'"([\w.]+)"', statement) == ["service.name", "service.instance.id"]


def test_points_stay_in_order_and_late_ones_are_still_taken() -> None:
    exporter = collector()["exporters"]["prometheus_remote_write"]
    assert exporter["max_batch_request_parallelism"] == 1
    assert exporter["remote_write_queue"]["num_consumers"] == 1
    database = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    window = database["storage"]["tsdb"]["out_of_order_time_window"]
    assert _hours(exporter["retry_on_failure"]["max_elapsed_time"]) < _hours(window)


def _hours(duration: str) -> int:
    return int(duration.removesuffix("h"))


def laptop() -> dict[str, str]:
    """What systemd makes of the file: a variable a line, taken as it is."""
    lines = (FOLDER / "laptop.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


@pytest.fixture
def pushed(tmp_path: Path) -> Iterator[tuple[Sink, Mapping[str, Any]]]:
    """A receiver to which a laptop pushed the usage of one project, and the resource it named."""
    chats = tmp_path / "gemini" / "tmp" / "secret-project" / "chats"
    chats.mkdir(parents=True)
    (chats / "session-a.jsonl").write_bytes(dumps(header()) + b"\n" + dumps(gemini()) + b"\n")
    with Sink() as sink:
        environ = laptop() | {"GEMINI_CLI_EXPORTER_OTLP_ENDPOINT": sink.url}
        with Pushing(tmp_path, tmp_path / "gemini", environ=environ) as program:
            program.start()
            points = sink.wait(
                lambda points: any(point.name == "gemini_cli.tokens" for point in points)
            )
        yield sink, points[-1].resource


def test_a_laptop_says_whose_it_is_and_authenticates(
    pushed: tuple[Sink, Mapping[str, Any]],
) -> None:
    sink, resource = pushed
    wanted = {"team": "platform", "owner": "ana", "host.name": "laptop7"}
    assert {name: resource.get(name) for name in wanted} == wanted
    assert sink.requests[0].headers["authorization"] == "Bearer TOKEN"
    assert sink.requests[0].encoding == "gzip"


def test_no_name_of_a_project_leaves_the_laptop(pushed: tuple[Sink, Mapping[str, Any]]) -> None:
    sink, _ = pushed
    assert "secret" not in repr(sink.points)
    assert {name for point in sink.points for name, _ in point.attributes}.isdisjoint({"project"})
    assert "url=http" not in repr(sink.points)
