"""What dashboards and rules ask is answered alike by Prometheus and by VictoriaMetrics, or it is
known why not and by how much.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from grafana.asking import Dashboard, Series, Window, ask, everything, panels
from tests.grafana.conftest import NAMES, load
from tests.prometheus import needs_prometheus
from tests.same_samples import DAYS, TARGET, Both, moment, rules, same_samples
from tests.victoriametrics import VictoriaMetrics, needs_victoriametrics, translated

pytestmark = [needs_prometheus, needs_victoriametrics, pytest.mark.timeout(180)]

WINDOWS: Final = {
    "a day": Window(moment(12, 11.25), moment(13, 11.25), 48, 60),
    "an hour": Window(moment(13, 10.75), moment(13, 11.75), 60, 60),
    "into the sleep": Window(moment(13, 11.75), moment(13, 12.5), 45, 60),
    "from sleep to sleep": Window(moment(12, 16), moment(13, 16), 48, 60),
}
INSTANTS: Final = [moment(13, hour) for hour in (11.25, 11.75, 12.05, 16)]

EXTRAPOLATED: Final = {
    "a day": 0.001,
    "an hour": 0.02,
    "into the sleep": 0.06,
    "from sleep to sleep": 0.01,
}
"""By what part of it an increase of Prometheus is more than what was stored, at most: half the time
between two samples at each end of those that are in the window. VictoriaMetrics never adds that."""

OVER_AN_HOUR: Final = 0.1
"""What the means of a graph of rates over an hour differ by, at most; single points differ by more:
VictoriaMetrics gives the window its share of what came since the sample before it."""

Points = dict[tuple[frozenset[tuple[str, str]], float], float]
"""Values by labels and time."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """Two servers that hold the same samples."""
    with same_samples(tmp_path_factory.mktemp("both")) as servers:
        yield servers


def points(found: Series) -> Points:
    """Return every value; VictoriaMetrics keeps the metric's name where Prometheus drops it."""
    return {
        (frozenset((k, v) for k, v in series["metric"].items() if k != "__name__"), at): float(text)
        for series in found
        for at, text in series.get("values") or [series["value"]]
    }


def numbers(found: Points) -> Points:
    return {key: value for key, value in found.items() if not math.isnan(value)}


def deviation(found: Points, expected: Points) -> float:
    """Return the greatest relative difference; endless if they have not the same points."""
    if found.keys() != expected.keys():
        return math.inf
    differences = (abs(found[key] - expected[key]) for key in found)
    largest = (max(abs(found[key]), abs(expected[key])) or 1 for key in found)
    return max((d / most for d, most in zip(differences, largest, strict=True)), default=0)


class Answer(NamedTuple):
    """What both say to one target of a dashboard."""

    name: str
    expr: str
    prometheus: Points
    victoria: Points


def answers(both: Both, name: str, window: Window, translate: bool = True) -> Iterator[Answer]:
    """Yield the answers to each target of a dashboard."""
    model = load(name)
    for panel in panels(model):
        asked = {**panel, "interval": ""}  # a least interval of minutes leaves few points
        told: Dashboard = asked
        if translate:
            targets = [{**each, "expr": translated(each["expr"])} for each in panel["targets"]]
            told = {**asked, "targets": targets}
        theirs = ask(both.victoria, told, window, everything(model))
        for ref, found in ask(both.prometheus, asked, window, everything(model)).items():
            (expr,) = (each["expr"] for each in panel["targets"] if each["refId"] == ref)
            label = f"{name}: {panel['title']} {ref}"
            yield Answer(label, expr, points(found), points(theirs[ref]))


def of_counters(expr: str) -> str | None:
    """Return the function of counters that a query uses."""
    found = re.search(r"\b(histogram_quantile|rate|increase)\(", expr)
    return found and found[1]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", NAMES)
def test_what_a_dashboard_says_of_gauges_is_the_same(both: Both, name: str, window: str) -> None:
    asked = [each for each in answers(both, name, WINDOWS[window]) if not of_counters(each.expr)]
    assert sum(len(each.prometheus) for each in asked) > 10
    assert [each.name for each in asked if deviation(each.victoria, each.prometheus) > 1e-9] == []


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", NAMES)
def test_increases_are_those_of_prometheus_without_what_it_adds(
    both: Both, name: str, window: str
) -> None:
    """If `increase_prometheus` is used, that is."""
    greatest = 0.0
    for each in answers(both, name, WINDOWS[window]):
        if of_counters(each.expr) == "increase":
            difference = deviation(each.victoria, numbers(each.prometheus))
            assert difference <= EXTRAPOLATED[window], each.name
            greatest = max(greatest, difference)
    print(f"{name}, {window}: increases differ by {greatest:.2%}")
    # After the end of the work nothing of what the page on the exporter's health counts goes on.
    assert greatest > EXTRAPOLATED[window] / 2 or (name, window) == ("health", "into the sleep")


def test_increase_of_a_window_that_begins_in_a_silence_counts_what_was_before(both: Both) -> None:
    """As after every night: a small first value after it is taken for an increase from 0."""
    window = WINDOWS["from sleep to sleep"]
    for each in answers(both, "overview", window, translate=False):
        if each.name in ("overview: Turns A", "overview: Saved by the cache A"):
            (theirs,), (ours,) = each.victoria.values(), each.prometheus.values()
            print(f"{each.name}: {theirs:.4f}, with Prometheus {ours:.4f}")
            assert theirs > ours * 1.03 + 0.1
    found = {each.name: list(each.victoria.values()) for each in answers(both, "overview", window)}
    assert found["overview: Turns A"] == [161]
    assert found["overview: Saved by the cache A"] == [0]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", NAMES)
def test_graphs_of_rates_miss_no_point(both: Both, name: str, window: str) -> None:
    for each in answers(both, name, WINDOWS[window]):
        if of_counters(each.expr) == "rate":
            assert numbers(each.prometheus).keys() <= each.victoria.keys(), each.name


@pytest.mark.parametrize("name", NAMES)
def test_graphs_of_rates_agree_over_an_hour(both: Both, name: str) -> None:
    greatest = 0.0
    for each in answers(both, name, WINDOWS["an hour"]):
        if of_counters(each.expr) == "rate":
            theirs = means(each.victoria)
            for labels, mean in means(numbers(each.prometheus)).items():
                difference = abs(theirs[labels] - mean) / (mean or 1)
                assert difference <= OVER_AN_HOUR, each.name
                greatest = max(greatest, difference)
    print(f"{name}: means of rates over an hour differ by {greatest:.2%}")


def means(found: Points) -> dict[frozenset[tuple[str, str]], float]:
    gathered: dict[frozenset[tuple[str, str]], list[float]] = {}
    for (labels, _), value in found.items():
        gathered.setdefault(labels, []).append(value)
    return {labels: sum(values) / len(values) for labels, values in gathered.items()}


def test_a_quantile_of_nothing_is_left_out_instead_of_not_a_number(both: Both) -> None:
    asked = [
        each
        for each in answers(both, "health", WINDOWS["an hour"])
        if of_counters(each.expr) == "histogram_quantile"
    ]
    assert len(asked) == 2
    for each in asked:
        assert each.prometheus
        assert each.victoria == numbers(each.prometheus) == {}


def rule_answers(both: Both, at: float, translate: Callable[[str], str]) -> dict[str, float]:
    """Return by how much VictoriaMetrics differs at a time, by the name of the rule."""
    asked = zip(rules(str), rules(translate), strict=True)
    return {
        ours.get("record") or ours["alert"]: deviation(
            points(both.victoria.query(theirs["expr"], at)),
            points(both.prometheus.query(ours["expr"], at)),
        )
        for ours, theirs in asked
    }


@pytest.mark.parametrize("at", INSTANTS)
def test_the_translated_rules_say_what_those_of_prometheus_say(both: Both, at: float) -> None:
    differing = {name: part for name, part in rule_answers(both, at, translated).items() if part}
    increases = {
        rule.get("record") or rule["alert"] for rule in rules(str) if "increase(" in rule["expr"]
    }
    # The windows are an hour or a day; at the end of the day's work an hour has fewer samples.
    assert {name for name, part in differing.items() if part > 1e-9} <= increases
    assert max(differing.values()) <= 0.02


def test_alerts_fire_in_both(both: Both) -> None:
    firing = {
        rule["alert"]
        for rule in rules(translated)
        if "alert" in rule and both.victoria.query(rule["expr"], INSTANTS[0])
    }
    assert firing == {
        "GeminiCliBudgetExceeded",
        "GeminiCliBudgetForecastToExceed",
        "GeminiCliBudgetNearlyUsed",
        "GeminiCliCacheHitRatioCollapsed",
        "GeminiCliExporterRecordsSkipped",
        "GeminiCliSpendFastBurn",
        "GeminiCliSpendUnusual",
        "GeminiCliToolErrorRatioHigh",
        "GeminiCliUnpricedModelInUse",
    }


MAX7D: Final = "job_instance_period:gemini_cli_spend_usd:max7d"
RATIO: Final = "job_instance_period:gemini_cli_budget_used:ratio"


def expr(name: str, translate: Callable[[str], str]) -> str:
    (found,) = (rule["expr"] for rule in rules(translate) if rule.get("record") == name)
    return str(found)


def test_untranslated_the_dearest_day_is_not_found(both: Both) -> None:
    """`end()` of a subquery lies ahead of the moment: too far for a plain selector."""
    at = moment(13, 11.75)
    assert points(both.prometheus.query(expr(MAX7D, str), at))
    assert both.victoria.query(expr(MAX7D, str), at) == []
    assert both.victoria.query(expr(MAX7D, translated), at)


def test_untranslated_a_removed_budget_is_not_marked(both: Both) -> None:
    """What is not a number is never an answer; the translated rule records -1."""
    # Five minutes after the last scrape with budgets, and a moment before the next record.
    at = moment(13, 11.5) + 4 * 60 + 19
    expected = points(both.prometheus.query(expr(RATIO, str), at))
    assert len(expected) == 3
    assert numbers(expected) == {}
    assert both.victoria.query(expr(RATIO, str), at) == []
    assert points(both.victoria.query(expr(RATIO, translated), at)) == dict.fromkeys(expected, -1)


def test_changes_counts_one_more(both: Both) -> None:
    """The first sample of all is a change to it, so an alert would fire a day too early."""
    selector = "job_instance_period:gemini_cli_period_start_timestamp_seconds:max"
    query = f'changes({selector}{{period="day"}}[7d])'
    assert both.prometheus.value(query, INSTANTS[0]) == len(DAYS) - 1
    assert both.victoria.value(query, INSTANTS[0]) == len(DAYS)
    assert both.victoria.value(translated(query), INSTANTS[0]) == len(DAYS) - 1


@pytest.mark.parametrize(
    ("flags", "minutes"),
    [([], 1), (["-search.minStalenessInterval=5m"], 5)],
    ids=["by itself", "told so"],
)
def test_a_silent_target_is_shown_as_long_as_by_prometheus_if_told_so(
    tmp_path: Path, flags: Sequence[str], minutes: int
) -> None:
    last = int(moment(13, 12))
    with VictoriaMetrics(tmp_path, {}, flags=flags) as victoria:
        for minute in range(30):
            victoria.take_in(b"memory 1\n", TARGET, (last - minute * 60) * 1000)
        (found,) = victoria.query_range("memory", last - 600, last + 900, 15)
        assert found["values"][-1][0] - last == pytest.approx(minutes * 60, abs=30)
