"""The rules that every dashboard keeps, and that its queries name what there is."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from exporter.outputs.catalog import CATALOG
from exporter.outputs.metric import Type
from grafana.asking import Window, everything, panels
from grafana.build import FOLDER, build
from tests.grafana.conftest import NAMES, load

Model = dict[str, Any]

_SUFFIXES = {
    Type.GAUGE: [""],
    Type.COUNTER: ["_total"],
    Type.HISTOGRAM: ["_bucket", "_count", "_sum"],
}
LABELS = {
    metric.name + suffix: {*metric.labels, *(["le"] if suffix == "_bucket" else [])}
    for metric in CATALOG
    for suffix in _SUFFIXES[metric.type]
} | {"process_resident_memory_bytes": set(), "process_cpu_seconds_total": set()}
"""The label names of every sample that the exporter serves."""

TARGET = {"job", "instance"}
"""The labels that Prometheus itself adds."""

WINDOW = Window(0, 86_400)

GAP = PADDING = 8
"""Pixels that Grafana leaves between two panels, and inside of a panel's border."""


def targets(model: Model) -> list[tuple[Any, Any]]:
    """Every target with its panel."""
    return [(panel, target) for panel in panels(model) for target in panel["targets"]]


def selectors(expr: str) -> list[tuple[str, str]]:
    """The metric and the matchers of every selector in a query."""
    return re.findall(r"\b([a-z_]+)\{([^}]*)\}", expr)


def queries(model: Model) -> list[str]:
    """The selectors' sources: targets and variables."""
    asked = [target["expr"] for _, target in targets(model)]
    variables = [v["query"]["query"] for v in model["templating"]["list"] if v["type"] == "query"]
    return asked + variables


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_file_is_what_the_code_makes(name: str) -> None:
    assert (FOLDER / f"{name}.json").read_text() == build()[f"{name}.json"]


def test_no_other_file_is_committed() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(build())


@pytest.mark.parametrize("name", NAMES)
def test_keys_are_sorted_and_the_file_ends_with_a_newline(name: str) -> None:
    text = (FOLDER / f"{name}.json").read_text()
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"


def test_the_model_is_classic_and_says_how_it_is_shown(dashboard: Model) -> None:
    assert dashboard["schemaVersion"] in (41, 42)
    assert dashboard["id"] is None
    assert dashboard["editable"] is False
    assert dashboard["graphTooltip"] == 1
    assert dashboard["timezone"] == "browser"
    assert dashboard["refresh"] == "1m"
    assert dashboard["time"] == {"from": "now-24h", "to": "now"}
    assert dashboard["tags"] == ["gemini-cli-mixin"]


def test_each_dashboard_has_a_readable_uid_of_its_own() -> None:
    assert [load(name)["uid"] for name in NAMES] == [
        "gemini-cli-overview",
        "gemini-cli-project",
        "gemini-cli-health",
    ]


def test_panels_have_ids_of_their_own_and_do_not_overlap(dashboard: Model) -> None:
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    cells: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        covered = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & covered, panel["title"]
        cells |= covered
    below = max(y for _, y in cells) + 1
    assert len(cells) == 24 * below, "the grid has holes"


def test_links_lead_to_the_other_dashboards_and_keep_time_and_variables(dashboard: Model) -> None:
    (link,) = dashboard["links"]
    assert (link["type"], link["tags"]) == ("dashboards", ["gemini-cli-mixin"])
    assert link["keepTime"] is True
    assert link["includeVars"] is True


def test_the_projects_of_the_overview_lead_to_the_dashboard_of_a_project() -> None:
    text = json.dumps(load("overview"))
    assert f"/d/{load('project')['uid']}?" in text
    assert "var-project=${__value.raw:percentencode}" in text


def test_variables_come_in_order(dashboard: Model) -> None:
    variables = dashboard["templating"]["list"]
    names = [variable["name"] for variable in variables]
    assert names == ["datasource", "job", "instance", "project", "model"]
    assert (variables[0]["type"], variables[0]["query"]) == ("datasource", "prometheus")
    assert variables[0]["label"] == "Data source"


def test_each_choice_is_of_several_or_all_and_follows_the_time_range(dashboard: Model) -> None:
    for variable in dashboard["templating"]["list"][1:]:
        assert variable["type"] == "query"
        assert variable["multi"] is True
        assert variable["includeAll"] is True
        assert variable["current"]["value"] == ["$__all"]
        assert variable["refresh"] == 2
        assert variable["definition"] == variable["query"]["query"]


def test_all_projects_include_a_label_that_is_left_out(dashboard: Model) -> None:
    """`.+` matches no series without the label, which `--labels.project none` makes of all."""
    all_values = everything(dashboard)
    assert all_values == {"job": ".+", "instance": ".+", "project": ".*", "model": ".+"}


def test_the_data_source_is_always_the_chosen_one(dashboard: Model) -> None:
    assert "__inputs" not in dashboard
    assert "__requires" not in dashboard
    asking = [*panels(dashboard), *(target for _, target in targets(dashboard))]
    asking += dashboard["templating"]["list"][1:]
    for each in asking:
        assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert set(re.findall(r'"uid": "(.*?)"', json.dumps(dashboard))) == {
        "${datasource}",
        dashboard["uid"],
    }


def test_every_selector_is_by_job_and_instance(dashboard: Model) -> None:
    for _, target in targets(dashboard):
        found = selectors(target["expr"])
        assert found
        for _, matchers in found:
            assert matchers.startswith('job=~"$job",instance=~"$instance"')


def test_every_metric_and_label_is_in_the_catalogue(dashboard: Model) -> None:
    for expr in queries(dashboard):
        for metric, matchers in selectors(expr):
            named = set(re.findall(r"([a-z_]+)=", matchers))
            assert named <= LABELS[metric] | TARGET, expr
        metrics = {metric for metric, _ in selectors(expr)}
        assert set(re.findall(r"\b(?:gemini_cli|process)_\w+", expr)) <= LABELS.keys(), expr
        grouped = re.findall(r"(?:by|on|group_left) \(([^)]*)\)", expr)
        known = TARGET.union(*(LABELS[metric] for metric in metrics))
        assert {name.strip() for names in grouped for name in names.split(",")} <= known, expr


def test_legends_are_made_of_labels_that_the_answer_has(dashboard: Model) -> None:
    for panel, target in targets(dashboard):
        named = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
        metrics = {metric for metric, _ in selectors(target["expr"])}
        known = TARGET.union(*(LABELS[metric] for metric in metrics))
        assert set(named) <= known, panel["title"]
        if panel["type"] == "timeseries" and len(panel["targets"]) == 1:
            assert named, panel["title"]


@pytest.mark.parametrize("name", ["overview", "project"])
def test_usage_is_filtered_by_project_and_model_where_it_has_them(name: str) -> None:
    """Except the budget of an exporter and what is set against it, which are for all projects."""
    for panel, target in targets(load(name)):
        if panel["title"] == "Budget used":
            continue
        for metric, matchers in selectors(target["expr"]):
            for label in {"project", "model"} & LABELS[metric]:
                assert f'{label}=~"${label}"' in matchers, panel["title"]


def test_no_panel_of_the_health_dashboard_is_filtered_by_what_it_does_not_show() -> None:
    health = load("health")
    hidden = {v["name"] for v in health["templating"]["list"] if v.get("hide") == 2}
    assert hidden == {"project", "model"}
    assert not any(f"${name}" in target["expr"] for _, target in targets(health) for name in hidden)


def test_windows_are_those_of_the_dashboard(dashboard: Model) -> None:
    """Totals are over the range and instant, rates over `$__rate_interval`; no window is fixed."""
    for panel, target in targets(dashboard):
        expr = target["expr"]
        assert set(re.findall(r"\[(.*?)\]", expr)) <= {"$__range", "$__rate_interval"}
        for function, window in re.findall(r"\b(rate|increase)\([^\[]*\[(\S+?)\]", expr):
            expected = {"rate": "$__rate_interval", "increase": "$__range"}
            assert window == expected[function], panel["title"]
        if "$__range" in expr:
            assert target["instant"] is True, panel["title"]
        assert target["instant"] is not target["range"]


def test_money_of_a_period_comes_from_event_time(dashboard: Model) -> None:
    for panel, target in targets(dashboard):
        if re.search(r"today|week|month|last hour|Budget", panel["title"], re.IGNORECASE):
            assert "gemini_cli_spend" in target["expr"], panel["title"]
            assert "increase" not in target["expr"], panel["title"]


def test_every_panel_says_what_it_shows(dashboard: Model) -> None:
    titles = [panel["title"] for panel in panels(dashboard)]
    assert len(set(titles)) == len(titles)
    for panel in panels(dashboard):
        about = panel["description"]
        assert len(about) > 40, panel["title"]
        assert about.endswith("."), panel["title"]
        assert re.search(
            r"exact|estimate|averaged|extrapolates|interpolated|as the kernel", about, re.IGNORECASE
        ), panel["title"]


def test_what_is_money_is_called_an_estimate(dashboard: Model) -> None:
    for panel in panels(dashboard):
        if "currencyUSD" in json.dumps(panel["fieldConfig"]):
            assert "estimate" in panel["description"].lower(), panel["title"]


def test_units_are_few_and_amounts_begin_at_0(dashboard: Model) -> None:
    for panel in panels(dashboard):
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"] in ("currencyUSD", "short", "percentunit", "s", "bytes")
        assert defaults["min"] == 0
    text = json.dumps(dashboard)
    assert text.isascii(), "no emoji"


def test_ratios_are_not_averages_of_ratios(dashboard: Model) -> None:
    for _, target in targets(dashboard):
        assert not re.search(r"\bavg(_over_time)?\b", target["expr"])


def test_tables_need_no_scrolling_to_the_side(dashboard: Model) -> None:
    """On a screen of 1600 pixels, of which Grafana's menu and margins may take 332."""
    cell = (1600 - 332 - 23 * GAP) / 24
    for panel in panels(dashboard):
        if panel["type"] == "table":
            columns = panel["transformations"][1]["options"]["renameByName"].values()
            widths = dict.fromkeys(columns, panel["fieldConfig"]["defaults"]["custom"]["minWidth"])
            for override in panel["fieldConfig"]["overrides"]:
                for each in override["properties"]:
                    if each["id"] == "custom.width":
                        widths[override["matcher"]["options"]] = each["value"]
            span = panel["gridPos"]["w"]
            inside = span * cell + (span - 1) * GAP - 2 * (PADDING + 1)
            assert sum(widths.values()) <= inside, panel["title"]


def test_every_query_is_valid_promql(tmp_path: Path) -> None:
    """As recording rules, which promtool can check."""
    exprs = []
    for name in NAMES:
        model = load(name)
        for _, target in targets(model):
            exprs.append(WINDOW.fill(target["expr"], 60, everything(model)))
        for variable in model["templating"]["list"][1:]:
            selector = variable["query"]["query"].removeprefix("label_values(").rpartition(",")[0]
            exprs.append(WINDOW.fill(selector, 60, everything(model)))
    rules = [{"record": f"query:{number}", "expr": expr} for number, expr in enumerate(exprs)]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboards", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout
