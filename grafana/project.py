"""The dashboard of one project: what its turns are like, and what they cost."""

from __future__ import annotations

from .frame import Page
from .panels import COUNT, RATIO, SECONDS, Panel, bars, cloud, course, number
from .queries import Form, Query, project_budget_used, rate, rate_by, ratio, total, usage
from .shared import (
    GROWN,
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

_TURNS = "gemini_cli_turns_total"
_SIZES = "gemini_cli_turn_prompt_tokens"


def page() -> Page:
    """Return the dashboard."""
    return Page(
        "gemini-cli-project",
        "Gemini CLI / Project",
        "One project in depth (choose it above): spend, models, turns, prompt sizes, sessions and "
        "tools.",
        {
            "Spend": [
                *spending(),
                last_hour(),
                unpriced_turns(),
                _last_turn(),
                _budgets(),
                spend_rate("model", span=14),
            ],
            "Usage in the chosen range": [*usage_in_range(), models(), cost_by_kind(10)],
            "Turns and tokens": [_turns(), tokens(), _active(), _prompt_tokens()],
            "Prompt size, all projects together": [_sizes(), _large()],
            "Tools": [tools(), failing_tools()],
        },
    )


def _last_turn() -> Panel:
    return number(
        "Since the last turn",
        "Now - the recorded time of the latest turn. Exact; the model filter does not apply.",
        SECONDS,
        f"time() - max({usage('gemini_cli_last_turn_timestamp_seconds')})",
    )


def _budgets() -> Panel:
    return budgets(
        "Project budget used",
        "Spent / budget of the project for the calendar day, week and month that run now, for each "
        "exporter that has a budget for it. Estimate at published prices; turns without a price "
        "are not in it; the model filter does not apply.",
        project_budget_used,
        "{{project}} {{instance}}",
    )


def _turns() -> Panel:
    return course(
        "Turns per hour by model",
        f"Model responses with recorded usage; a prompt with three tool rounds makes four. {RATE}",
        COUNT,
        rate_by(usage(_TURNS), "model", 3600),
        columns=True,
    )


def _active() -> Panel:
    active = f"sum by (project) ({usage('gemini_cli_active_sessions')})"
    return course(
        "Active sessions",
        "Sessions with a turn in the 5 minutes before, by the recorded times. Exact at each "
        "scrape; the model filter does not apply.",
        COUNT,
        Query(active, "{{project}}"),
    )


def _prompt_tokens() -> Panel:
    prompt = rate(usage("gemini_cli_tokens_total", 'kind=~"input|cached|tool"'), "model")
    return course(
        "Prompt tokens per turn by model",
        "(input + cached + tool tokens) / turns: the mean size of a prompt. It grows as a session "
        f"goes on and falls when the chat is compressed or begun anew. {RATE}",
        COUNT,
        Query(ratio(prompt, rate(usage(_TURNS), "model")), "{{model}}"),
    )


def _sizes() -> Panel:
    return cloud(
        "Turns per hour by prompt size",
        "How many turns per hour had a prompt up to each edge and above the one below it; prompt = "
        "input with cached, and tool tokens. The metric is by model only, so the project filter "
        f"does not apply. {RATE}",
        COUNT,
        rate(usage(f"{_SIZES}_bucket"), "le", 3600),
    )


def _large() -> Panel:
    # Exporters spell the edges of a histogram differently: 200000 and 200000.0.
    up_to = usage(f"{_SIZES}_bucket", r'le=~"200000(\\.0)?"')
    small, whole = total(up_to, "model"), total(usage(f"{_SIZES}_count"), "model")
    return bars(
        "Turns with more than 200k prompt tokens",
        "1 - turns up to 200,000 prompt tokens / all turns, by model: several models cost more "
        f"above it. The metric is by model only, so the project filter does not apply. {GROWN}",
        RATIO,
        Query(f"sort_desc(1 - {ratio(small, whole)})", "{{model}}", Form.AT_END),
        most=1,
        span=12,
    )
