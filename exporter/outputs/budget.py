"""The metrics of what was spent by the calendar, and of what may be spent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..ledger.budgets import Period
from ..ledger.labels import label_and_owner
from ..ledger.model import PICO
from .metric import Metric, Rows, Type, View


def _spend(view: View) -> Rows:
    spent = {key: pico / PICO for key, pico in view.spending.periods.items()}
    for project in _without_turns(view, (project for _, project in spent)):
        spent.update({(period, project): 0.0 for period in Period})
    return spent.items()


def _last_hour(view: View) -> Rows:
    for project, pico in view.spending.last_hour.items():
        yield (project,), pico / PICO
    for project in _without_turns(view, view.spending.last_hour):
        yield (project,), 0.0


def _without_turns(view: View, spent: Iterable[str]) -> set[str]:
    """Return the projects that have a budget but no turn in one of the periods."""
    return set(view.budgets.projects) - {label_and_owner(project)[0] for project in spent}


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
