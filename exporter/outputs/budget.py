"""The metrics of what was spent by the calendar, and of what may be spent."""

from __future__ import annotations

from typing import Final

from ..ledger.budgets import Period
from ..ledger.model import PICO
from .metric import Metric, Rows, Type, View


def _spend(view: View) -> Rows:
    spent = {key: pico / PICO for key, pico in view.spending.periods.items()}
    for project in view.budgets.projects:
        for period in Period:
            spent.setdefault((period, project), 0.0)
    return spent.items()


def _last_hour(view: View) -> Rows:
    projects = dict.fromkeys(view.budgets.projects, 0) | dict(view.spending.last_hour)
    for project, pico in projects.items():
        yield (project,), pico / PICO


def _budget(view: View) -> Rows:
    for period, usd in view.budgets.total.items():
        yield (period,), float(usd)


def _project_budget(view: View) -> Rows:
    for project, amounts in view.budgets.projects.items():
        for period, usd in amounts.items():
            yield (period, project), float(usd)


def _start(view: View) -> Rows:
    for period, span in view.budgets.calendar.spans(view.now).items():
        yield (period,), span.start / 1000


def _end(view: View) -> Rows:
    for period, span in view.budgets.calendar.spans(view.now).items():
        yield (period,), span.end / 1000


BUDGET: Final = (
    Metric(
        "gemini_cli_spend_usd",
        Type.GAUGE,
        "Estimated cost since the period began, by the recorded time of turns: day, ISO week or "
        "month in the configured time zone.",
        ("period", "project"),
        _spend,
    ),
    Metric(
        "gemini_cli_spend_last_hour_usd",
        Type.GAUGE,
        "Estimated cost of the last 60 minutes, by the recorded time of turns.",
        ("project",),
        _last_hour,
    ),
    Metric(
        "gemini_cli_budget_usd",
        Type.GAUGE,
        "What may be spent in the period, from the settings of this exporter.",
        ("period",),
        _budget,
    ),
    Metric(
        "gemini_cli_project_budget_usd",
        Type.GAUGE,
        "What one project may spend in the period, from the settings of this exporter.",
        ("period", "project"),
        _project_budget,
    ),
    Metric(
        "gemini_cli_period_start_timestamp_seconds",
        Type.GAUGE,
        "When the current period began in the configured time zone.",
        ("period",),
        _start,
    ),
    Metric(
        "gemini_cli_period_end_timestamp_seconds",
        Type.GAUGE,
        "When the current period ends in the configured time zone.",
        ("period",),
        _end,
    ),
)
