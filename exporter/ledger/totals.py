"""Running sums of the ledger: one transaction's changes, and the state that outputs read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from operator import add
from typing import Any, Final, TypeVar

import msgspec

from .audience import Audience
from .budgets import SLOT_MS, Period
from .model import PROMPT_EDGES, Rate, TokenUsage

UsageKey = tuple[int, int, int]
"""Project, model and rate ids; rate 0 is unpriced."""
PairKey = tuple[int, int]
"""Project and model ids."""
ToolKey = tuple[int, int, int]
"""Project, model and tool ids."""
SpendKey = tuple[int, int, int]
"""Slot of time (see `budgets.SLOT_MS`), project and rate ids."""
SeriesName = tuple[str, str, str, str]
"""Family of series that are born together, and labels of project, model and tool (empty: none)."""
Row = tuple[int, ...]

BUCKETS: Final = len(PROMPT_EDGES) + 1

_Key = TypeVar("_Key")


def bucket_of(prompt: int) -> int:
    """Return the index of the histogram bucket that a prompt of that many tokens falls into."""
    return bisect_left(PROMPT_EDGES, prompt)


class Sums:
    """The sums by key. Rows are tuples and are replaced, so a shallow copy is a frozen state.

    `usage` rows are turns and the five token kinds, `tools` rows calls, errors and cancellations,
    `prompts` maps (model, bucket) to turns, `unpriced` maps a pair to tokens. `spend` rows are the
    token kinds of the turns that have a price.
    """

    def __init__(self) -> None:
        self.usage: dict[UsageKey, Row] = {}
        self.tools: dict[ToolKey, Row] = {}
        self.prompts: dict[PairKey, Row] = {}
        self.unpriced: dict[PairKey, Row] = {}
        self.spend: dict[SpendKey, Row] = {}

    def tables(self) -> tuple[tuple[str, dict[Any, Row]], ...]:
        """Return each mapping behind the name of the ledger's table that stores it."""
        return (
            ("usage_total", self.usage),
            ("tool_total", self.tools),
            ("prompt_total", self.prompts),
            ("unpriced_total", self.unpriced),
        )

    def add_usage(self, key: UsageKey, usage: TokenUsage, turns: int) -> None:
        """Add turns and the usage of all of them together."""
        self._add(self.usage, key, (turns, *usage))

    def add_tool(self, key: ToolKey, calls: int, errors: int, cancellations: int) -> None:
        """Add tool calls, `calls` including the failed and the cancelled ones."""
        self._add(self.tools, key, (calls, errors, cancellations))

    def add_prompt(self, model: int, bucket: int, turns: int = 1) -> None:
        """Count turns in the bucket of their prompt size."""
        self._add(self.prompts, (model, bucket), (turns,))

    def add_spend(self, time: int, project: int, rate: int, usage: TokenUsage) -> None:
        """Add the usage of a turn that has a price, at its event time in milliseconds."""
        self._add(self.spend, (time // SLOT_MS, project, rate), tuple(usage))

    def add_unpriced(self, key: PairKey, tokens: int) -> None:
        """Add tokens that have no published price at the moment they are counted."""
        self._add(self.unpriced, key, (tokens,))

    def merge(self, other: Sums) -> None:
        """Add all of the other's sums to these."""
        for (_, mine), (_, theirs) in zip(self.tables(), other.tables(), strict=True):
            for key, row in theirs.items():
                self._add(mine, key, row)

    def frozen(self) -> Sums:
        """Return a copy that later changes of this one do not touch."""
        copy = Sums()
        for (_, new), (_, old) in zip(copy.tables(), self.tables(), strict=True):
            new.update(old)
        return copy

    @staticmethod
    def _add(table: dict[_Key, Row], key: _Key, row: Row) -> None:
        old = table.get(key)
        table[key] = row if old is None else tuple(map(add, old, row))


class PairTotal(msgspec.Struct, frozen=True):
    """What one model did in one project: money in pico-USD, cost None where nothing is priced."""

    turns: int
    tokens: TokenUsage
    cost: tuple[int, int, int, int, int] | None
    savings: int
    unpriced_tokens: int


class ToolTotal(msgspec.Struct, frozen=True):
    """Calls of one tool; errors and cancellations are part of the calls."""

    calls: int
    errors: int
    cancellations: int


class PromptSizes(msgspec.Struct, frozen=True):
    """Histogram of prompt sizes of one model: turns by bucket (not cumulative), tokens in all."""

    buckets: tuple[int, ...]
    tokens: int


class Activity(msgspec.Struct, frozen=True):
    """Sessions and the last turn of one project, times in milliseconds since the epoch."""

    sessions: int
    last_turn: int
    recent: tuple[int, ...]
    """Time of the last turn of each session that had one lately."""


class Snapshot(msgspec.Struct, frozen=True):
    """The ledger at one moment, keyed by label values, for outputs to read at leisure.

    `generation` grows with each change; `prices` holds the latest base rate by model and
    `unpriced_turns` the turns without a price now.
    """

    generation: int
    pairs: Mapping[tuple[str, str], PairTotal]
    tools: Mapping[tuple[str, str, str], ToolTotal]
    prompts: Mapping[str, PromptSizes]
    activity: Mapping[str, Activity]
    prices: Mapping[str, Rate]
    unpriced_turns: Mapping[str, int]
    ledger_turns: int
    held: Mapping[Audience, frozenset[SeriesName]]
    """Series that each audience is shown as 0."""


class Spending(msgspec.Struct, frozen=True):
    """What was spent lately by project label, in pico-USD, by event time.

    `periods` has each project with a turn in one of the periods, and every period of it.
    """

    periods: Mapping[tuple[Period, str], int]
    last_hour: Mapping[str, int]


class Naming(msgspec.Struct, frozen=True):
    """Labels by id, as they were when the sums were frozen."""

    project: Mapping[int, str]
    model: Mapping[int, str]
    tool: Mapping[int, str]
    rate: Mapping[int, Rate]


def pair_totals(sums: Sums, names: Naming) -> dict[tuple[str, str], PairTotal]:
    """Add up usage by (project, model) label; costs are tokens times rate, exact integers."""
    merged: dict[tuple[str, str], PairTotal] = {}
    for (project, model, rate_id), (turns, *counts) in sorted(sums.usage.items()):
        if not turns:
            continue  # all of its turns moved to another rate or proved to be echoes
        key = (names.project[project], names.model[model])
        usage = TokenUsage(*counts)
        cost, savings = None, 0
        if rate_id:
            rate = names.rate[rate_id]
            cost = tuple(map(int.__mul__, usage, rate.by_kind()))
            savings = usage.cached * max(0, rate.input - rate.cached)
        old = merged.get(key)
        if old is not None:
            turns += old.turns
            usage = TokenUsage(*map(add, usage, old.tokens))
            savings += old.savings
            cost = tuple(map(add, cost, old.cost)) if cost and old.cost else cost or old.cost
        merged[key] = PairTotal(turns, usage, cost, savings, 0)  # type: ignore[arg-type]
    unpriced: dict[tuple[str, str], int] = {}
    for (project, model), (tokens,) in sums.unpriced.items():
        key = (names.project[project], names.model[model])
        unpriced[key] = unpriced.get(key, 0) + tokens
    return {
        key: msgspec.structs.replace(total, unpriced_tokens=unpriced.get(key, 0))
        for key, total in merged.items()
    }


def tool_totals(sums: Sums, names: Naming) -> dict[tuple[str, str, str], ToolTotal]:
    """Add up tool calls by (project, model, tool) label."""
    merged: dict[tuple[str, str, str], ToolTotal] = {}
    for (project, model, tool), row in sorted(sums.tools.items()):
        key = (names.project[project], names.model[model], names.tool[tool])
        old = merged.get(key, ToolTotal(0, 0, 0))
        merged[key] = ToolTotal(old.calls + row[0], old.errors + row[1], old.cancellations + row[2])
    return merged


def prompt_sizes(sums: Sums, names: Naming) -> dict[str, PromptSizes]:
    """Return the histogram of each model; its sum is all prompt tokens of the model's turns."""
    tokens: dict[str, int] = {}
    for (_, model, _), (_, fresh, cached, _, _, tool) in sums.usage.items():
        name = names.model[model]
        tokens[name] = tokens.get(name, 0) + fresh + cached + tool
    buckets: dict[str, list[int]] = {name: [0] * BUCKETS for name in tokens}
    for (model, bucket), (turns,) in sums.prompts.items():
        buckets[names.model[model]][bucket] += turns
    return {name: PromptSizes(tuple(buckets[name]), tokens[name]) for name in tokens}


def unpriced_turns(sums: Sums, names: Naming) -> dict[str, int]:
    """Return the turns without a price by model, priced models included with 0."""
    turns: dict[str, int] = {}
    for (_, model, rate), row in sums.usage.items():
        name = names.model[model]
        turns[name] = turns.get(name, 0) + (0 if rate else row[0])
    return turns
