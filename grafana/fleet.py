"""The dashboard of many exporters: which team, owner and host spends, and who is not heard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders.dashboard import QueryVariable
from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

from .frame import Page
from .panels import (
    ANY_IS_WORTH_A_LOOK,
    BUDGET,
    COUNT,
    RATIO,
    SECONDS,
    USD,
    Column,
    Panel,
    bars,
    course,
    number,
    rows,
)
from .queries import Form, Query, exporter, rate_by, ratio, total
from .shared import GROWN, RATE, budgets
from .variables import choice

_COUNTED: Final = "job_instance_team_owner_host_period:gemini_cli_spend_usd:counted"
_NEWEST: Final = "job_instance_team_owner_host:gemini_cli_exporter_seen_timestamp_seconds:newest"
_SPENT: Final = "team_period:gemini_cli_spend_usd:sum"
_BUDGET: Final = "team_period:gemini_cli_budget_usd:constant"
_RATE: Final = "team_model:gemini_cli_cost_usd:rate1h"
"""What the rules of `deploy/fleet` record."""

_INFO: Final = "gemini_cli_exporter_build_info"
_EACH: Final = "job, instance, team, owner, host"
_AWAKE_SECONDS: Final = 600

_ONCE: Final = (
    "Estimate at published prices; turns without a price are not in it. Each owner on each host "
    "counts once, and who sleeps keeps what was spent until the period ends. By the turns' own "
    "times, each in the time zone of its exporter."
)
_OF_TEAMS: Final = "It is recorded by team, so of the filters only that of teams applies."

_KEPT: Final = "?${__url_time_range}&${datasource:queryparam}"
_OVERVIEW: Final = (
    f"/d/gemini-cli-overview{_KEPT}&var-job=${{__data.fields.Job}}"
    "&var-instance=${__value.raw:percentencode}"
)
_TEAM: Final = f"/d/gemini-cli-fleet{_KEPT}&var-team=${{__value.raw:percentencode}}"


def page() -> Page:
    """Return the dashboard."""
    return Page(
        "gemini-cli-fleet",
        "Gemini CLI / Fleet",
        "What Gemini CLI's usage costs by team, owner and host, and which exporters are heard. It "
        "needs the rules of deploy/fleet and the labels team, owner and host.",
        {
            "Spend": [*_spending(), _unpriced(), _known(), _awake(), _teams(), _budgets()],
            "Who spends": [_spenders("Owners", "owner"), _spenders("Hosts", "host")],
            "Where the money goes": [_spend_rate("team"), _spend_rate("model")],
            "Usage in the chosen range": [_models(), _tokens()],
            "Exporters": [_exporters(), _versions()],
        },
        hide_usage=True,
        more=_choices(),
    )


def _choices() -> Sequence[QueryVariable]:
    """The choices of team, owner and host, each of those that the ones before it leave."""
    labels = {"team": "Team", "owner": "Owner", "host": "Host"}
    chosen: list[str] = []
    found = []
    for name, title in labels.items():
        series = exporter(_INFO, *chosen)
        # Where an exporter has no such label, `.+` would leave it out.
        found.append(choice(name, title, series).all_value(".*"))
        chosen.append(f'{name}=~"${name}"')
    return found


def _fleet(name: str, *matchers: str) -> str:
    return exporter(name, 'team=~"$team"', 'owner=~"$owner"', 'host=~"$host"', *matchers)


def _spent(period: str, by: str = "") -> str:
    grouped = f" by ({by}) " if by else ""
    counted = _fleet(_COUNTED, f'period="{period}"')
    return f"sum{grouped}({counted})"


def _spending() -> list[Panel]:
    titles = {"day": "Spent today", "week": "Spent this week", "month": "Spent this month"}
    return [
        number(
            title,
            f"Cost of the turns in the calendar {period} that runs now. {_ONCE}",
            USD,
            _spent(period),
        )
        for period, title in titles.items()
    ]


def _spent_columns(by: str) -> list[Column]:
    return [
        Column("Today", USD, _spent("day", by)),
        Column("This week", USD, _spent("week", by)),
        Column("This month", USD, _spent("month", by)),
    ]


def _unpriced() -> Panel:
    return number(
        "Turns without a price",
        "All recorded turns of exporters that answer now whose model has no known price: no total "
        "of money contains them, so each is at least what it says. Exact.",
        COUNT,
        f"sum({_fleet('gemini_cli_unpriced_turns')}) or 0 * count({_fleet(_INFO)})",
        limits=ANY_IS_WORTH_A_LOOK,
    )


def _known() -> Panel:
    return number(
        "Exporters",
        "Exporters that were heard within 32 days. Exact.",
        COUNT,
        f"count({_fleet(_NEWEST)})",
    )


def _awake() -> Panel:
    return number(
        "Exporters awake",
        "Exporters that were heard within ten minutes. Exact.",
        COUNT,
        f"count(time() - {_fleet(_NEWEST)} < {_AWAKE_SECONDS}) or 0 * count({_fleet(_NEWEST)})",
    )


def _teams() -> Panel:
    panel = rows(
        "Teams",
        "Spend of each team in the calendar day, week and month that run now, and the used part of "
        f"its monthly budget, if it has one. {_ONCE}",
        {"team": "Team"},
        [*_spent_columns("team"), Column("Budget used", RATIO, _budget_used("month"), BUDGET)],
        sort="This month",
        span=14,
    )
    return _linked(panel, "Team", "Show this team", _TEAM)


def _budget_used(period: str) -> str:
    chosen = f'{{team=~"$team",period="{period}"}}'
    return f"sum by (team) ({_SPENT}{chosen}) / on (team) max by (team) ({_BUDGET}{chosen})"


def _budgets() -> Panel:
    return budgets(
        "Team budgets used",
        "Spent / budget of each team for the calendar day, week and month that run now. Budgets "
        f"are constants of the rules. {_OF_TEAMS} {_ONCE}",
        _budget_used,
        "{{team}}",
    )


def _spenders(title: str, label: str) -> Panel:
    return rows(
        title,
        f"Spend of each {label} in the calendar day, week and month that run now. {_ONCE}",
        {"team": "Team", label: label.title()},
        _spent_columns(f"team, {label}"),
        sort="This month",
    )


def _spend_rate(label: str) -> Panel:
    spent = f'sum by ({label}) ({_RATE}{{team=~"$team"}}) * 3600'
    return course(
        f"Spend in the last hour by {label}",
        "What was spent in the hour before each point, by the time of counting, averaged by "
        "Prometheus: estimate at published prices, turns without a price not in it. Each owner on "
        f"each host counts once. {_OF_TEAMS}",
        USD,
        Query(spent, f"{{{{{label}}}}}"),
    )


def _models() -> Panel:
    cost = total(_fleet("gemini_cli_cost_usd_total"), "model")
    turns = total(_fleet("gemini_cli_turns_total"), "model")
    unpriced = total(_fleet("gemini_cli_unpriced_tokens_total"), "model")
    return rows(
        "Models",
        f"Cost, turns, cost per turn and tokens of each model. {GROWN} Costs are estimates at "
        "published prices. Unpriced are tokens that had no price when they were counted: where "
        "there are any, the cost is too low.",
        {"model": "Model"},
        [
            Column("Cost", USD, cost),
            Column("Turns", COUNT, turns),
            Column("Per turn", USD, ratio(cost, turns), decimals=4),
            Column("Tokens", COUNT, total(_fleet("gemini_cli_tokens_total"), "model")),
            Column("Unpriced", COUNT, unpriced, ANY_IS_WORTH_A_LOOK),
        ],
        sort="Cost",
        span=14,
    )


def _tokens() -> Panel:
    return course(
        "Tokens per minute by kind",
        f"Tokens as recorded; the kinds are disjoint, so the stack is their sum. {RATE}",
        COUNT,
        rate_by(_fleet("gemini_cli_tokens_total"), "kind", 60),
        columns=True,
        span=10,
    )


def _exporters() -> Panel:
    turns = f"last_over_time({_fleet('gemini_cli_exporter_ledger_turns')}[$__range])"
    panel = rows(
        "Exporters by last heard",
        "When each exporter was heard last, for 32 days, and what it has spent this month. Exact; "
        "the amounts are estimates at published prices. An exporter without an amount has no "
        "turns, or another one of the same owner on the same host is counted in its place.",
        {"team": "Team", "owner": "Owner", "host": "Host", "instance": "Instance", "job": "Job"},
        [
            Column("Heard ago", SECONDS, f"max by ({_EACH}) (time() - {_fleet(_NEWEST)})"),
            Column("This month", USD, _spent("month", _EACH)),
            Column("Turns", COUNT, f"max by ({_EACH}) ({turns})"),
        ],
        sort="Heard ago",
        span=24,
        height=10,
    )
    return _linked(panel, "Instance", "Show this exporter", _OVERVIEW)


def _versions() -> Panel:
    return bars(
        "Versions",
        "Exporters that answer now by their version. Exact; one that is being updated is seen "
        "under both for five minutes.",
        COUNT,
        Query(f"sort_desc(count by (version) ({_fleet(_INFO)}))", "{{version}}", Form.AT_END),
        span=24,
        height=5,
    )


def _linked(panel: Panel, column: str, title: str, url: str) -> Panel:
    """Make the values of a table's column lead to a URL."""
    links = [{"title": title, "url": url}]
    panel.override_by_name(column, [DynamicConfigValue(id_val="links", value=links)])
    return panel
