"""Panels and texts that more than one dashboard shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .panels import (
    ANY_IS_WORTH_A_LOOK,
    BUDGET,
    COUNT,
    ERRORS,
    RATIO,
    USD,
    Column,
    Panel,
    bars,
    course,
    number,
    rows,
)
from .queries import (
    Form,
    Query,
    cache_hits,
    or_zero,
    rate_by,
    ratio,
    spent,
    tool_errors,
    total,
    usage,
)

PRICED: Final = (
    "Estimate at published prices; turns without a price are not in it. Each exporter adds it up "
    "by the turns' own times, so restarts, sleep and missed scrapes change nothing. "
    "The model filter does not apply."
)
GROWN: Final = (
    "What the counters grew by in the chosen time range, as Prometheus extrapolates it to the "
    "range's edges: close, not exact."
)
RATE: Final = "Averaged by Prometheus around each point."

_PERIODS = {"day": "Spent today", "week": "Spent this week", "month": "Spent this month"}


def spending() -> list[Panel]:
    """Return what was spent today, this week and this month."""
    return [
        number(
            title,
            f"Cost of the turns in the calendar {period} that runs now, in the exporter's time "
            f"zone. {PRICED}",
            USD,
            spent(period),
        )
        for period, title in _PERIODS.items()
    ]


def budgets(title: str, text: str, used: Callable[[str], str], legend: str, *more: Query) -> Panel:
    """Return the used part of the budgets of each period, which `used` asks for, and of `more`."""
    periods = [Query(used(period), f"{period} {legend}", Form.AT_END) for period in _PERIODS]
    return bars(
        title,
        text,
        RATIO,
        *periods,
        *more,
        limits=BUDGET,
        most=1,
        empty="no budget set",
        span=10,
    )


def last_hour() -> Panel:
    """Return what was spent in the last 60 minutes."""
    return number(
        "Spent in the last hour",
        f"Cost of the turns of the trailing 60 minutes. {PRICED}",
        USD,
        f"sum({usage('gemini_cli_spend_last_hour_usd')})",
    )


def usage_in_range() -> list[Panel]:
    """Return turns, sessions, cost per turn, tokens and what the cache did for them."""
    cost = total(usage("gemini_cli_cost_usd_total"))
    turns = total(usage("gemini_cli_turns_total"))
    return [
        number("Turns", f"Model responses with recorded usage. {GROWN}", COUNT, turns),
        number(
            "Sessions started",
            "Distinct main sessions, each counted at its first turn; the model filter does not "
            f"apply. {GROWN}",
            COUNT,
            total(usage("gemini_cli_sessions_total")),
        ),
        number(
            "Cost per turn",
            "Cost / turns: estimate at published prices; a turn without a price counts as turn "
            f"and not as cost. {GROWN}",
            USD,
            ratio(cost, turns),
            decimals=4,
        ),
        number(
            "Tokens",
            f"Tokens of all kinds as recorded. {GROWN}",
            COUNT,
            total(usage("gemini_cli_tokens_total")),
        ),
        number(
            "Cache hit ratio",
            f"Cached tokens / (cached + other prompt tokens) of all turns. {GROWN}",
            RATIO,
            cache_hits(),
        ),
        number(
            "Saved by the cache",
            "What the cached tokens would have cost more at each turn's own input price: estimate "
            f"at published prices. {GROWN}",
            USD,
            total(usage("gemini_cli_cache_savings_usd_total")),
        ),
    ]


def models() -> Panel:
    """Return the table of models: what each costs and what it gives for it."""
    cost, turns = usage("gemini_cli_cost_usd_total"), usage("gemini_cli_turns_total")
    unpriced = usage("gemini_cli_unpriced_tokens_total")
    return rows(
        "Models",
        f"Cost, turns, cost per turn, tokens and cache hit ratio of each model. {GROWN} Costs are "
        "estimates at published prices. Unpriced are tokens that had no price when they were "
        "counted: where there are any, the cost is too low.",
        {"model": "Model"},
        [
            Column("Cost", USD, total(cost, "model")),
            Column("Turns", COUNT, total(turns, "model")),
            Column("Per turn", USD, ratio(total(cost, "model"), total(turns, "model")), decimals=4),
            Column("Tokens", COUNT, total(usage("gemini_cli_tokens_total"), "model")),
            Column("Cache hits", RATIO, cache_hits("model")),
            Column("Unpriced", COUNT, total(unpriced, "model"), ANY_IS_WORTH_A_LOOK),
        ],
        sort="Cost",
        span=14,
    )


def tokens(span: int = 12) -> Panel:
    """Return the tokens over time by kind."""
    return course(
        "Tokens per minute by kind",
        "Tokens as recorded; the kinds are disjoint, so the stack is their sum: input is the "
        f"prompt without its cached part, output is without thoughts. {RATE}",
        COUNT,
        rate_by(usage("gemini_cli_tokens_total"), "kind", 60),
        columns=True,
        span=span,
    )


def cost_by_kind(span: int = 12) -> Panel:
    """Return what each kind of token cost."""
    cost = total(usage("gemini_cli_cost_usd_total"), "kind")
    return bars(
        "Cost by kind of token",
        "What the input (without its cached part), the cached input, the output, the thoughts and "
        f"the tools' prompts cost: estimate at published prices. {GROWN}",
        USD,
        Query(f"sort_desc({cost})", "{{kind}}", Form.AT_END),
        span=span,
    )


def tools() -> Panel:
    """Return the table of tools and how often they fail."""
    return rows(
        "Tools",
        "Finished calls of each tool, those that failed and those that the user cancelled; error "
        "ratio = errors / (calls - cancellations). Counted exactly from the transcripts. "
        f"{GROWN}",
        {"tool": "Tool"},
        [
            Column("Calls", COUNT, total(usage("gemini_cli_tool_calls_total"), "tool")),
            Column("Errors", COUNT, total(usage("gemini_cli_tool_errors_total"), "tool")),
            Column("Cancelled", COUNT, total(usage("gemini_cli_tool_cancellations_total"), "tool")),
            Column("Error ratio", RATIO, tool_errors("tool"), ERRORS),
        ],
        sort="Calls",
    )


def failing_tools() -> Panel:
    """Return the failed calls over time by tool."""
    return course(
        "Failed tool calls per hour by tool",
        f"Calls that the CLI recorded with status error, cancelled ones not among them. {RATE}",
        COUNT,
        rate_by(usage("gemini_cli_tool_errors_total"), "tool", 3600),
        columns=True,
    )


def spend_rate(label: str, span: int = 12) -> Panel:
    """Return the cost over time by a label."""
    return course(
        f"Spend per hour by {label}",
        "How fast money is spent: estimate at published prices, turns without a price not in it. "
        f"{RATE}",
        USD,
        rate_by(usage("gemini_cli_cost_usd_total"), label, 3600),
        columns=True,
        span=span,
    )


def unpriced_turns() -> Panel:
    """Return how many turns the money panels leave out."""
    return number(
        "Turns without a price",
        "All recorded turns whose model has no known price: no total of money contains them, so "
        "each is at least what it says. Exact; not by project. The remedy is a newer price "
        "library or a price of your own in the settings.",
        COUNT,
        or_zero(f"sum({usage('gemini_cli_unpriced_turns')})"),
        limits=ANY_IS_WORTH_A_LOOK,
    )
