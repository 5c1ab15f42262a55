"""What the money panels say of machines that sleep, of several exporters, and of the month."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from grafana.asking import Window, everything
from grafana.queries import budget_used, forecast, spent
from tests.grafana.conftest import load

HOUR, DAY = 3600, 86_400
WINDOW = Window(0, DAY)

Samples = dict[str, str]


def check(tmp_path: Path, series: Samples, expr: str, hour: float, expected: list[Any]) -> None:
    """Let promtool evaluate a query on hourly samples and compare the values it finds."""
    query = WINDOW.fill(expr, 60, everything(load("overview")))
    test = {
        "interval": "1h",
        "input_series": [{"series": name, "values": text} for name, text in series.items()],
        "promql_expr_test": [
            {"expr": query, "eval_time": f"{hour * 60:.0f}m", "exp_samples": expected}
        ],
    }
    path = tmp_path / "test.yml"
    path.write_text(json.dumps({"tests": [test]}))
    done = subprocess.run(
        ["promtool", "test", "rules", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def of(metric: str, instance: str, period: str, project: str = "") -> str:
    labels = {"job": "gemini", "instance": instance, "period": period, "project": project}
    text = ",".join(f'{name}="{value}"' for name, value in labels.items() if value)
    return f"gemini_cli_{metric}{{{text}}}"


def spend(instance: str, period: str, project: str = "shop") -> str:
    return of("spend_usd", instance, period, project)


def end(instance: str, period: str) -> str:
    return of("period_end_timestamp_seconds", instance, period)


def start(instance: str, period: str) -> str:
    return of("period_start_timestamp_seconds", instance, period)


def sample(value: float, labels: str = "{}") -> dict[str, Any]:
    return {"labels": labels, "value": value}


def test_what_several_exporters_spent_is_added_up(tmp_path: Path) -> None:
    series = {
        spend("a", "day", "shop"): "1x9",
        spend("a", "day", "docs"): "2x9",
        spend("b", "day", "shop"): "4x9",
        end("a", "day"): f"{DAY}x9",
        end("b", "day"): f"{DAY}x9",
    }
    check(tmp_path, series, spent("day"), 9, [sample(7)])


def test_a_machine_that_sleeps_keeps_what_it_spent_in_the_period(tmp_path: Path) -> None:
    series = {
        spend("awake", "day"): "1x20",
        end("awake", "day"): f"{DAY}x20",
        spend("asleep", "day"): "4x2",
        end("asleep", "day"): f"{DAY}x2",
    }
    check(tmp_path, series, spent("day"), 20, [sample(5)])


def test_what_it_spent_in_a_period_that_is_over_is_not_counted(tmp_path: Path) -> None:
    series = {spend("asleep", "day"): "4x20", end("asleep", "day"): f"{DAY}x20"}
    check(tmp_path, series, spent("day"), 25, [])


def test_a_project_that_an_exporter_shows_no_more_is_not_counted(tmp_path: Path) -> None:
    """After the end of the month it has no turn yet."""
    series = {
        spend("a", "month", "old"): "9x9 stale",
        spend("a", "month", "shop"): "1x20",
        end("a", "month"): f"{30 * DAY}x20",
    }
    check(tmp_path, series, spent("month"), 20, [sample(1)])


def test_each_exporter_is_set_against_its_own_budget(tmp_path: Path) -> None:
    series = {
        spend("a", "week", "shop"): "1x9",
        spend("a", "week", "docs"): "2x9",
        end("a", "week"): f"{7 * DAY}x9",
        of("budget_usd", "a", "week"): "4x9",
        spend("b", "week", "shop"): "1x9",
        end("b", "week"): f"{7 * DAY}x9",
        of("budget_usd", "b", "week"): "2x9",
        spend("none", "week", "shop"): "5x9",
        end("none", "week"): f"{7 * DAY}x9",
    }
    expected = [
        sample(0.75, '{job="gemini",instance="a"}'),
        sample(0.5, '{job="gemini",instance="b"}'),
    ]
    check(tmp_path, series, budget_used("week"), 9, expected)


@pytest.mark.parametrize(
    ("hour", "expected"),
    [
        pytest.param(4.75, [], id="early"),
        pytest.param(6, [sample(8)], id="a fifth is over"),
        pytest.param(12, [sample(4)], id="half is over"),
    ],
)
def test_the_forecast_is_a_straight_line_after_a_fifth_of_the_month(
    tmp_path: Path, hour: float, expected: list[Any]
) -> None:
    """Of a month of 24 hours, for short."""
    series = {
        spend("a", "month"): "2x24",
        start("a", "month"): "0x24",
        end("a", "month"): f"{DAY}x24",
    }
    check(tmp_path, series, forecast(), hour, expected)


def test_forecasts_of_exporters_in_different_months_are_added_up(tmp_path: Path) -> None:
    series = {
        spend("a", "month"): "2x24",
        start("a", "month"): "0x24",
        end("a", "month"): f"{DAY}x24",
        spend("b", "month"): "1x24",
        start("b", "month"): "0x24",
        end("b", "month"): f"{2 * DAY}x24",
    }
    check(tmp_path, series, forecast(), 12, [sample(8)])
