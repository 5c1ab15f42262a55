"""What may be spent and what was: from the settings and the ledger to the gauges."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from exporter.ledger.budgets import Period
from exporter.outputs.budget import BUDGET
from exporter.outputs.prometheus import Exposition
from exporter.parts import budgets_of
from tests.support import Home, gemini, header, home, millis, refusal, settings

NOW = "2026-11-30T21:00:00Z"
"""A Monday, and the last day of its month."""

Gauge = dict[tuple[str, ...], float]
Show = Callable[..., Gauge]
Config = Callable[[str], Path]


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Home]:
    with home(tmp_path) as scratch:
        scratch.clock.now = millis(NOW)
        yield scratch


@pytest.fixture
def show(scratch: Home) -> Show:
    """Read one of the gauges by its name without the prefix, as settings make it."""

    def show(name: str, *argv: str, environ: Mapping[str, str] | None = None) -> Gauge:
        budgets = budgets_of(settings(*argv, environ=environ))
        exposition = Exposition(scratch.ledger, scratch.stats, scratch.clock, budgets)
        for family in text_string_to_metric_families(exposition.render().decode()):
            if family.name == f"gemini_cli_{name}":
                assert family.type == "gauge"
                return {
                    tuple(label for _, label in sorted(sample.labels.items())): sample.value
                    for sample in family.samples
                }
        raise KeyError(name)

    return show


def test_without_budgets_there_is_the_calendar_alone(show: Show) -> None:
    assert show("budget_usd") == show("project_budget_usd") == {}
    assert show("spend_usd") == show("spend_last_hour_usd") == {}
    for bound in ("start", "end"):
        assert show(f"period_{bound}_timestamp_seconds").keys() == {(period,) for period in Period}


def test_a_budget_is_the_same_from_a_flag_a_variable_and_a_file(
    show: Show, write_config: Config
) -> None:
    path = write_config("budget: {month: 200, day: 12.5}")
    variables = {
        "GEMINI_CLI_EXPORTER_BUDGET_MONTH": "200",
        "GEMINI_CLI_EXPORTER_BUDGET_DAY": "12.5",
    }
    expected = {("month",): 200, ("day",): 12.5}
    assert show("budget_usd", "--budget.month", "200", "--budget.day", "12.5") == expected
    assert show("budget_usd", environ=variables) == expected
    assert show("budget_usd", "--config.file", str(path)) == expected


def test_a_budget_of_nothing_is_a_budget(show: Show) -> None:
    assert show("budget_usd", "--budget.week", "0") == {("week",): 0}


def test_budgets_of_projects_come_from_the_file(show: Show, write_config: Config) -> None:
    path = write_config("budget: {projects: {shop: {month: 50, day: 5}, api: {week: 0.000001}}}")
    assert show("project_budget_usd", "--config.file", str(path)) == {
        ("month", "shop"): 50,
        ("day", "shop"): 5,
        ("week", "api"): 0.000001,
    }
    assert show("budget_usd", "--config.file", str(path)) == {}


def test_a_project_with_a_budget_has_spent_0_before_its_first_turn(
    show: Show, write_config: Config
) -> None:
    """And one whose budget is for one period alone is shown in all."""
    path = write_config("budget: {projects: {api: {month: 50}}}")
    options = ("--config.file", str(path))
    assert show("spend_usd", *options) == {(period, "api"): 0 for period in Period}
    assert show("spend_last_hour_usd", *options) == {("api",): 0}


def test_what_a_project_has_spent_is_shown_with_or_without_a_budget(
    scratch: Home, show: Show, write_config: Config
) -> None:
    """100 tokens in and 10 out of gemini-2.5-flash, at $0.30 and $2.50 a million."""
    cost = pytest.approx(100 * 0.3e-6 + 10 * 2.5e-6, rel=1e-12)
    scratch.write(header("one"), gemini("a", time="2026-11-30T20:30:00Z"))
    scratch.write(header("two"), gemini("b", time="2026-11-29T20:30:00Z"), project="api")
    scratch.write(header("old"), gemini("c", time="2026-10-31T20:30:00Z"), project="old")
    scratch.scan()
    path = write_config("budget: {projects: {shop: {day: 1}, docs: {day: 1}}}")
    assert show("spend_usd", "--config.file", str(path)) == {
        **{(period, "shop"): cost for period in Period},
        **{(period, "api"): cost if period is Period.MONTH else 0 for period in Period},
        **{(period, "docs"): 0 for period in Period},
    }
    assert show("spend_last_hour_usd", "--config.file", str(path)) == {
        ("shop",): cost,
        ("api",): 0,
        ("docs",): 0,
    }
    assert {project for _, project in show("spend_usd")} == {"shop", "api"}


@pytest.mark.parametrize(
    ("zone", "starts", "ends"),
    [
        (
            "UTC",
            ("2026-11-30T00:00Z", "2026-11-30T00:00Z", "2026-11-01T00:00Z"),
            ("2026-12-01T00:00Z", "2026-12-07T00:00Z", "2026-12-01T00:00Z"),
        ),
        (
            "Europe/Berlin",
            ("2026-11-29T23:00Z", "2026-11-29T23:00Z", "2026-10-31T23:00Z"),
            ("2026-11-30T23:00Z", "2026-12-06T23:00Z", "2026-11-30T23:00Z"),
        ),
        (  # There it is already the first of December.
            "Asia/Kolkata",
            ("2026-11-30T18:30Z", "2026-11-29T18:30Z", "2026-11-30T18:30Z"),
            ("2026-12-01T18:30Z", "2026-12-06T18:30Z", "2026-12-31T18:30Z"),
        ),
    ],
)
def test_periods_begin_and_end_in_the_time_zone_of_the_settings(
    show: Show, zone: str, starts: tuple[str, ...], ends: tuple[str, ...]
) -> None:
    option = ("--budget.timezone", zone)
    for bound, expected in (("start", starts), ("end", ends)):
        assert show(f"period_{bound}_timestamp_seconds", *option) == {
            (period,): millis(text) / 1000 for period, text in zip(Period, expected, strict=True)
        }


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="TZ sets no time zone on this system")
def test_the_default_zone_is_the_machines_own(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        monkeypatch.setenv("TZ", "IST-5:30")
        time.tzset()
        own = show("period_start_timestamp_seconds")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert own == show("period_start_timestamp_seconds", "--budget.timezone", "Asia/Kolkata")


def test_the_day_of_the_gauge_is_the_day_of_the_time_zone(scratch: Home, show: Show) -> None:
    scratch.write(header(), gemini(time="2026-11-30T18:15:00Z"))
    scratch.scan()
    for zone, spent in (("UTC", True), ("Asia/Kolkata", False)):
        day = show("spend_usd", "--budget.timezone", zone)["day", "shop"]
        assert (day > 0) is spent


def test_every_period_holds_now(show: Show) -> None:
    starts = show("period_start_timestamp_seconds")
    ends = show("period_end_timestamp_seconds")
    now = millis(NOW) / 1000
    assert all(starts[period] <= now < ends[period] for period in starts)


@pytest.mark.parametrize("name", ["a\\nb", "\\ud800", " shop", ""], ids=ascii)
def test_a_budget_for_a_name_that_no_project_can_have_is_refused(
    write_config: Config, name: str
) -> None:
    path = write_config(f'budget: {{projects: {{"{name}": {{day: 1}}}}}}')
    assert "budget.projects" in refusal("--config.file", str(path))


def test_a_budget_may_be_for_any_name_that_a_label_can_have(
    show: Show, write_config: Config
) -> None:
    path = write_config("""budget: {projects: {'C:\\new "shop" ü': {day: 1}}}""")
    assert show("project_budget_usd", "--config.file", str(path)) == {
        ("day", 'C:\\new "shop" ü'): 1
    }


def test_these_are_the_metrics_of_budgets() -> None:
    assert {metric.name: metric.labels for metric in BUDGET} == {
        "gemini_cli_spend_usd": ("period", "project"),
        "gemini_cli_spend_last_hour_usd": ("project",),
        "gemini_cli_budget_usd": ("period",),
        "gemini_cli_project_budget_usd": ("period", "project"),
        "gemini_cli_period_start_timestamp_seconds": ("period",),
        "gemini_cli_period_end_timestamp_seconds": ("period",),
    }
