"""The metrics of what was used and what it is estimated to cost, read from the ledger's totals."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Final

from ..ledger.memory import RECENT_MS
from ..ledger.model import KINDS, PICO, PROMPT_EDGES
from ..ledger.totals import PairTotal, ToolTotal
from .metric import Buckets, Metric, Rows, Type, View, by_value


def _pairs(value: Callable[[PairTotal], float]) -> Callable[[View], Rows]:
    def read(view: View) -> Rows:
        for (project, model), total in view.snapshot.pairs.items():
            yield (model, project), value(total)

    return read


def _tokens(view: View) -> Rows:
    for (project, model), total in view.snapshot.pairs.items():
        for kind, tokens in zip(KINDS, total.tokens, strict=True):
            yield (kind, model, project), tokens


def _cost(view: View) -> Rows:
    for (project, model), total in view.snapshot.pairs.items():
        for kind, pico in zip(KINDS, total.cost or (), strict=bool(total.cost)):
            yield (kind, model, project), pico / PICO


def _savings(view: View) -> Rows:
    for (project, model), total in view.snapshot.pairs.items():
        if total.cost is not None:
            yield (model, project), total.savings / PICO


def _unpriced(view: View) -> Rows:
    for (project, model), total in view.snapshot.pairs.items():
        if total.unpriced_tokens:
            yield (model, project), total.unpriced_tokens


def _tools(value: Callable[[ToolTotal], int]) -> Callable[[View], Rows]:
    def read(view: View) -> Rows:
        for (project, model, tool), total in view.snapshot.tools.items():
            yield (model, project, tool), value(total)

    return read


def _prompts(view: View) -> Rows:
    edges = tuple(map(float, PROMPT_EDGES))
    for model, sizes in view.snapshot.prompts.items():
        yield (model,), Buckets(edges, tuple(accumulate(sizes.buckets)), sizes.tokens)


def _sessions(view: View) -> Rows:
    for project, activity in view.snapshot.activity.items():
        yield (project,), activity.sessions


def _active(view: View) -> Rows:
    horizon = view.now - RECENT_MS
    for project, activity in view.snapshot.activity.items():
        yield (project,), sum(time > horizon for time in activity.recent)


def _last_turn(view: View) -> Rows:
    for project, activity in view.snapshot.activity.items():
        yield (project,), activity.last_turn / 1000


def _prices(view: View) -> Rows:
    for model, rate in view.snapshot.prices.items():
        for kind, pico in zip(KINDS, rate.by_kind(), strict=True):
            yield (kind, model), pico / 1_000_000


_PAIR: Final = ("model", "project")
_KIND: Final = ("kind", "model", "project")
_TOOL: Final = ("model", "project", "tool")

USAGE: Final = (
    Metric(
        "gemini_cli_turns",
        Type.COUNTER,
        "Model responses with recorded usage, each message id counted once.",
        _PAIR,
        _pairs(lambda total: total.turns),
        "usage",
    ),
    Metric(
        "gemini_cli_tokens",
        Type.COUNTER,
        "Tokens by disjoint kind: input is the recorded input without cached, "
        "output is without thoughts.",
        _KIND,
        _tokens,
        "usage",
    ),
    Metric(
        "gemini_cli_cost_usd",
        Type.COUNTER,
        "Estimated cost at published prices: tokens of the same labels times each turn's own rate.",
        _KIND,
        _cost,
        "cost",
    ),
    Metric(
        "gemini_cli_cache_savings_usd",
        Type.COUNTER,
        "Estimated amount that cached tokens would have cost more at each turn's own input rate.",
        _PAIR,
        _savings,
        "cost",
    ),
    Metric(
        "gemini_cli_unpriced_tokens",
        Type.COUNTER,
        "Tokens of all kinds whose model had no published price when they were counted.",
        _PAIR,
        _unpriced,
        "unpriced",
    ),
    Metric(
        "gemini_cli_unpriced_turns",
        Type.GAUGE,
        "Turns without a price now, which the estimated cost does not contain.",
        ("model",),
        by_value(lambda view: view.snapshot.unpriced_turns),
    ),
    Metric(
        "gemini_cli_tool_calls",
        Type.COUNTER,
        "Finished tool calls, failed and cancelled ones included, by model of the calling message.",
        _TOOL,
        _tools(lambda total: total.calls),
        "tool",
    ),
    Metric(
        "gemini_cli_tool_errors",
        Type.COUNTER,
        "Tool calls recorded with status error.",
        _TOOL,
        _tools(lambda total: total.errors),
        "tool",
    ),
    Metric(
        "gemini_cli_tool_cancellations",
        Type.COUNTER,
        "Tool calls recorded with status cancelled.",
        _TOOL,
        _tools(lambda total: total.cancellations),
        "tool",
    ),
    Metric(
        "gemini_cli_turn_prompt_tokens",
        Type.HISTOGRAM,
        "Prompt size of turns: recorded input with cached tokens, plus tool tokens, "
        "as it decides the price tier.",
        ("model",),
        _prompts,
        "prompt",
    ),
    Metric(
        "gemini_cli_sessions",
        Type.COUNTER,
        "Distinct main sessions with a turn, in the project of their first.",
        ("project",),
        _sessions,
        "sessions",
    ),
    Metric(
        "gemini_cli_active_sessions",
        Type.GAUGE,
        "Sessions with a turn in the last 5 minutes, by the recorded time of the turn.",
        ("project",),
        _active,
    ),
    Metric(
        "gemini_cli_last_turn_timestamp_seconds",
        Type.GAUGE,
        "Recorded time of the latest turn.",
        ("project",),
        _last_turn,
    ),
    Metric(
        "gemini_cli_price_usd_per_million_tokens",
        Type.GAUGE,
        "Price of the base tier after overrides at the model's latest turn, for display.",
        ("kind", "model"),
        _prices,
    ),
)
