"""Every query of every dashboard answered by a real Prometheus: imported days and live turns."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import pytest

from exporter.outputs.metric import Type
from exporter.outputs.running import FAMILIES
from grafana.asking import Dashboard, Series, ask, everything, panels, values
from tests.grafana.conftest import NAMES, load
from tests.grafana.stack import JOB, ROUNDS, SHOP, TURNS, Stack, running
from tests.prometheus import needs_prometheus

pytestmark = [needs_prometheus, pytest.mark.timeout(180)]

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

ASLEEP = "gemini_cli_period_end_timestamp_seconds"
"""A metric that only matters while an exporter does not answer; test_lint checks its name."""

UNPRICED = "Turns without a price"
"""A panel that shows 0 where it finds nothing, so its number is tested by itself."""

BROUGHT_ALONG = {"version": "A", "mode": "B"}
"""Labels of a table's rows that only one of its targets has."""

PAST = {
    metric.name + suffix
    for metric in FAMILIES
    for suffix in (["_total"] if metric.type is Type.COUNTER else ["_bucket", "_count", "_sum"])
}
"""The samples that history has."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The same for all tests: it takes seconds to start."""
    with running(tmp_path_factory.mktemp("stack")) as stack:
        yield stack


Target = tuple[str, str, str]
"""Dashboard, title of the panel, reference of the query."""


def points(series: Series) -> list[tuple[float, float]]:
    """All times and values that are numbers."""
    found = [point for each in series for point in each.get("values") or [each["value"]]]
    return [(at, float(text)) for at, text in found if not math.isnan(float(text))]


def metrics(expr: str) -> set[str]:
    """The metrics that a query names."""
    return set(re.findall(r"\b(?:gemini_cli|process)_\w+", expr))


def names(expr: str) -> set[str]:
    """The metrics and the labels that a query names."""
    lists = re.findall(r"(?:by|on|group_left) \(([^)]*)\)", expr)
    labels = {label.strip() for names in lists for label in names.split(",")}
    return metrics(expr) | labels | set(re.findall(r'(\w+)=~?"', expr))


def named(panel: Dashboard, target: Dashboard) -> set[str]:
    """The labels that a target's series are told apart by: of its legend, or of a table's rows."""
    if panel["type"] != "table":
        return set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    _, organize = panel["transformations"]
    labels = {name for name in organize["options"]["renameByName"] if name.islower()}
    return {name for name in labels if BROUGHT_ALONG.get(name, target["refId"]) == target["refId"]}


def has_data(series: Series, labels: set[str]) -> bool:
    """Whether there are numbers, and the series have these labels."""
    return bool(points(series)) and all(labels <= each["metric"].keys() for each in series)


def answers(
    stack: Stack, name: str, chosen: dict[str, str]
) -> Iterator[tuple[Dashboard, Dashboard, Series]]:
    """Each panel and target of a dashboard, with what it gets."""
    model = load(name)
    for panel in panels(model):
        got = ask(stack.prometheus, panel, stack.window, everything(model) | chosen)
        for target in panel["targets"]:
            yield panel, target, got[target["refId"]]


def lacking(stack: Stack, name: str, chosen: dict[str, str], *left_out: str) -> set[Target]:
    """The targets that have no data; labels that are left out need not be there."""
    return {
        (name, panel["title"], target["refId"])
        for panel, target, series in answers(stack, name, chosen)
        if not has_data(series, named(panel, target).difference(left_out))
    }


def number(stack: Stack, title: str, instance: str) -> float:
    """What a panel of the overview shows as its only number of an exporter."""
    model = load("overview")
    (panel,) = (panel for panel in panels(model) if panel["title"] == title)
    got = ask(stack.prometheus, panel, stack.window, everything(model) | {"instance": instance})
    ((_, value),) = points(got["A"])
    return value


@pytest.mark.parametrize("name", NAMES)
def test_every_target_of_every_panel_has_data(stack: Stack, name: str) -> None:
    assert lacking(stack, name, {}, "project") <= MAY_BE_EMPTY.keys()


@pytest.mark.parametrize("name", NAMES)
def test_every_target_has_data_of_one_exporter_project_and_model(stack: Stack, name: str) -> None:
    chosen = {"instance": stack.labelled, "project": SHOP, "model": "gemini-2.5-pro"}
    assert lacking(stack, name, chosen) <= MAY_BE_EMPTY.keys() | NOT_BY_MODEL.keys()


@pytest.mark.parametrize("name", NAMES)
def test_every_target_has_data_where_the_label_project_is_left_out(stack: Stack, name: str) -> None:
    found = lacking(stack, name, {"instance": stack.unlabelled}, "project")
    assert found <= MAY_BE_EMPTY.keys() | NOT_BY_PROJECT.keys()


@pytest.mark.parametrize("name", NAMES)
def test_no_name_can_be_misspelt_without_loss_of_data(stack: Stack, name: str) -> None:
    chosen = {
        "instance": stack.labelled,
        "project": SHOP,
        "model": "gemini-2.5-pro|gemini-of-tomorrow",
    }
    filled = everything(load(name)) | chosen
    tried = 0
    for panel, target, series in answers(stack, name, chosen):
        if not series or panel["title"] == UNPRICED:
            continue
        expr = target["expr"]
        for word in names(expr) - {ASLEEP}:
            wrong = re.sub(rf"(?<![$\w]){word}\b", f"{word}x", expr)
            query = stack.window.fill(wrong, stack.window.step(panel), filled)
            found = stack.prometheus.query(query, stack.window.end)
            assert not has_data(found, named(panel, target)), wrong
            tried += 1
    assert tried > 50


@pytest.mark.parametrize("name", NAMES)
def test_courses_reach_from_the_imported_days_to_the_live_turns(stack: Stack, name: str) -> None:
    """Those of counters; of gauges, and of the exporter itself, there is no past to import."""
    for panel, target, series in answers(stack, name, {"instance": stack.labelled}):
        if target["range"]:
            times = [at for at, _ in points(series)]
            assert max(times) > stack.scraped, panel["title"]
            if metrics(target["expr"]) <= PAST:
                assert min(times) < stack.scraped - 86_400, panel["title"]
            else:
                assert min(times) > stack.scraped, panel["title"]


def test_totals_of_the_range_are_those_of_history_and_live_turns(stack: Stack) -> None:
    written = TURNS + 2 * ROUNDS
    stored = f'sum(gemini_cli_turns_total{{instance="{stack.labelled}"}})'
    assert stack.prometheus.value(stored) == written
    assert number(stack, "Turns", stack.labelled) == pytest.approx(written, rel=0.03)


def test_turns_without_a_price_are_counted(stack: Stack) -> None:
    assert number(stack, UNPRICED, stack.labelled) == ROUNDS


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
    assert found["job"] == [JOB]
    assert found["instance"] == sorted([stack.labelled, stack.unlabelled])
    assert SHOP in found["project"]
    assert {"gemini-2.5-pro", "gemini-of-tomorrow"} <= set(found["model"])


def test_the_spend_of_all_exporters_is_the_sum_of_each(stack: Stack) -> None:
    labelled, unlabelled, both = (
        number(stack, "Spent this month", instance)
        for instance in (stack.labelled, stack.unlabelled, ".+")
    )
    assert both == pytest.approx(labelled + unlabelled)
    assert labelled == pytest.approx(unlabelled)
