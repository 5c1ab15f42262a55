"""The dashboard for the first look: is the money going as planned, and where does it go?"""

from __future__ import annotations

from .frame import Page
from .panels import BUDGET, RATIO, USD, Column, Panel, course, number, rows
from .queries import (
    Form,
    Query,
    budget_used,
    cache_hits,
    forecast,
    forecast_of_budget,
    project_budget_used,
    spent,
    usage,
)
from .shared import (
    PRICED,
    RATE,
    budgets,
    cost_by_kind,
    failing_tools,
    last_hour,
    models,
    spend_rate,
    spending,
    tokens,
    tools,
    unpriced_turns,
    usage_in_range,
)

_PROJECT = (
    "/d/gemini-cli-project?${__url_time_range}&${datasource:queryparam}&${job:queryparam}"
    "&${instance:queryparam}&${model:queryparam}&var-project=${__value.raw:percentencode}"
)


def page() -> Page:
    """Return the dashboard."""
    return Page(
        "gemini-cli-overview",
        "Gemini CLI / Overview",
        "What Gemini CLI's usage costs, against its budgets, and which models, projects and tools "
        "it goes to.",
        {
            "Budget and spend": [
                *spending(),
                _forecast(),
                last_hour(),
                unpriced_turns(),
                _budgets(),
                _projects(),
            ],
            "Where the money goes": [spend_rate("model"), spend_rate("project")],
            "Usage in the chosen range": [
                *usage_in_range(),
                models(),
                tokens(10),
                cost_by_kind(),
                _cache(),
            ],
            "Tools": [tools(), failing_tools()],
        },
    )


def _forecast() -> Panel:
    return number(
        "Month at this pace",
        "Spent this month / elapsed part of the month, summed over the exporters: a forecast by "
        f"straight line, shown once a fifth of the month is over. {PRICED}",
        USD,
        forecast(),
        empty="after a fifth of the month",
    )


def _budgets() -> Panel:
    return budgets(
        "Budget used",
        "Spent / budget of each exporter for the calendar day, week and month that run now, and "
        "what the month will come to at its pace so far. A budget is for all projects and models "
        "of its exporter, so those filters do not apply. Estimate at published prices; turns "
        "without a price are not in it.",
        budget_used,
        "{{instance}}",
        Query(forecast_of_budget(), "month at this pace {{instance}}", Form.AT_END),
    )


def _projects() -> Panel:
    last = usage("gemini_cli_spend_last_hour_usd")
    budget = f"max by (project) ({project_budget_used('month')})"
    return rows(
        "Projects",
        "Spend of each project in the trailing hour and in the calendar day, week and month that "
        "run now, and the used part of its own monthly budget, if it has one (of several "
        f"exporters: the most used). {PRICED}",
        {"project": "Project"},
        [
            Column("Last hour", USD, f"sum by (project) ({last})"),
            Column("Today", USD, spent("day", "project")),
            Column("This week", USD, spent("week", "project")),
            Column("This month", USD, spent("month", "project")),
            Column("Budget used", RATIO, budget, BUDGET),
        ],
        sort="This month",
        link=("Project", _PROJECT),
        span=14,
    )


def _cache() -> Panel:
    return course(
        "Cache hit ratio by model",
        "Cached tokens / (cached + other prompt tokens). A drop means that prompts change at "
        f"their beginning, or that pauses outlast the cache. {RATE}",
        RATIO,
        Query(cache_hits("model", over_time=True), "{{model}}"),
        most=1,
    )
