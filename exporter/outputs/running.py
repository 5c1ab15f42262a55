"""Running totals: the value of each counter at every moment of the past."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import accumulate
from typing import Final, NamedTuple

from ..ledger.model import KINDS, PICO, PROMPT_EDGES
from ..ledger.totals import BUCKETS, bucket_of
from .metric import Metric, Type
from .past import Group, Past
from .usage import USAGE

FAMILIES: Final = tuple(metric for metric in USAGE if metric.type is not Type.GAUGE)
"""What has a past. Of gauges the ledger only holds the value of now."""

Rise = tuple[int, int]
"""A moment, in milliseconds since the epoch, and by how much a counter rises then."""

Step = tuple[int, tuple[int, ...]]
"""A moment, in milliseconds since the epoch, and the values from then on."""


class Together(NamedTuple):
    """Series that move together: their names, as suffix and labels, and their steps in time.

    `born` is when the first turn was, `rows` how many rows of the copy are read for the steps, and
    `unit` what their whole numbers are divided by.
    """

    names: list[tuple[str, dict[str, str]]]
    born: int
    rows: int
    steps: Callable[[], Iterable[Step]]
    unit: int = 1


def read(metric: Metric, past: Past) -> list[Together]:
    """Return the series of one of `FAMILIES`, sorted by labels."""
    return list(_READERS[metric.name](past))


def _counter(
    past: Past,
    group: Group,
    family: str,
    rises: Callable[[], Iterable[Rise]],
    *,
    kind: str = "",
    where: str = "1",
    unit: int = 1,
) -> Iterator[Together]:
    """Yield the counter of a group; nothing where no row is as `where` says."""
    born = past.start(family, group, where)
    if born is not None:
        labels = {"kind": kind, **group.labels}
        yield Together([("_total", labels)], born, group.rows, lambda: _running(rises()), unit)


def _running(rises: Iterable[Rise]) -> Iterator[Step]:
    value = 0
    for time, rise in rises:
        value += rise
        yield time, (value,)


def _turns(past: Past) -> Iterator[Together]:
    for group in past.groups("usage"):
        yield from _counter(past, group, "usage", partial(past.rows, group, "time, 1"))


def _tokens(past: Past) -> Iterator[Together]:
    for kind in KINDS:
        for group in past.groups("usage"):
            rises = partial(past.rows, group, f"time, {kind}")
            yield from _counter(past, group, "usage", rises, kind=kind)


def _cost(past: Past) -> Iterator[Together]:
    for index, kind in enumerate(KINDS):
        prices = {rate: by_kind[index] for rate, by_kind in past.rates.items()}
        for group in past.groups("usage"):
            rises = partial(_priced, past, group, kind, prices)
            yield from _counter(past, group, "cost", rises, kind=kind, where=_PRICED, unit=PICO)


def _savings(past: Past) -> Iterator[Together]:
    saved = {rate: max(0, fresh - cached) for rate, (fresh, cached, *_) in past.rates.items()}
    for group in past.groups("usage"):
        rises = partial(_priced, past, group, "cached", saved)
        yield from _counter(past, group, "cost", rises, where=_PRICED, unit=PICO)


_PRICED: Final = "rate != 0"


def _priced(past: Past, group: Group, kind: str, prices: dict[int, int]) -> Iterator[Rise]:
    for time, tokens, rate in past.rows(group, f"time, {kind}, rate"):
        yield time, tokens * prices[rate] if rate else 0


def _unpriced(past: Past) -> Iterator[Together]:
    for group in past.groups("usage"):
        if past.unpriced.get(group.key):
            rises = partial(_not_priced, past, group)
            where = "1" if past.priced_later.get(group.key, 0) > 0 else "rate = 0"
            yield from _counter(past, group, "unpriced", rises, where=where)


def _not_priced(past: Past, group: Group) -> Iterator[Rise]:
    """Yield the tokens that had no price when they were counted.

    Which turns got one later is not known, only their sum: they are the earliest of those that have
    one now, since a model is priced from some day on.
    """
    later = past.priced_later.get(group.key, 0)
    tokens = "input + cached + output + thoughts + tool"
    for time, count, rate in past.rows(group, f"time, {tokens}, rate"):
        if rate:
            count = min(count, later)
            later -= count
        yield time, count


def _calls(column: str, index: int) -> Callable[[Past], Iterator[Together]]:
    def read_calls(past: Past) -> Iterator[Together]:
        for group in past.groups("call"):
            rises = partial(_called, past, group, column, index)
            yield from _counter(past, group, "tool", rises)

    return read_calls


def _called(past: Past, group: Group, column: str, index: int) -> Iterator[Rise]:
    """Yield calls at the time of their message.

    Where this is not known, as the message is no turn, they are with the last one of which it is;
    they are left out if a scraper may have seen them rise later.
    """
    last = past.born.get(("tool", *group.key), 0)
    for last, count in past.rows(group, f"time, {column}"):
        yield last, count
    if past.complete and group.key in past.timeless:
        yield last, past.timeless[group.key][index]


def _sessions(past: Past) -> Iterator[Together]:
    for group in past.groups("session"):
        yield from _counter(past, group, "sessions", partial(past.rows, group, "time, 1"))


def _prompt_sizes(past: Past) -> Iterator[Together]:
    for group in past.groups("prompt"):
        born = past.start("prompt", group)
        if born is not None:
            edges = [*(repr(float(edge)) for edge in PROMPT_EDGES), "+Inf"]
            names = [("_bucket", {**group.labels, "le": edge}) for edge in edges]
            names += [("_sum", group.labels), ("_count", group.labels)]
            steps = partial(_sizes, past, group)
            yield Together(names, born, group.rows, steps)


def _sizes(past: Past, group: Group) -> Iterator[Step]:
    """Yield cumulative buckets, the sum of tokens and the count of turns.

    A reply that was counted by its first part stays in the bucket of that, and the ledger does not
    keep which one it was: so the ledger's own count is the limit, and what is reached at last.
    """
    ledger = [past.buckets.get((*group.key, bucket), 0) for bucket in range(BUCKETS)]
    limits = list(accumulate(ledger))
    buckets, tokens = [0] * BUCKETS, 0
    for turns, (time, prompt) in enumerate(past.rows(group, "time, tokens"), 1):
        tokens += prompt
        buckets[bucket_of(prompt)] += 1
        counts = limits if turns == limits[-1] else list(map(min, accumulate(buckets), limits))
        yield time, (*counts, tokens, counts[-1])


_READERS: Final = {
    "gemini_cli_turns": _turns,
    "gemini_cli_tokens": _tokens,
    "gemini_cli_cost_usd": _cost,
    "gemini_cli_cache_savings_usd": _savings,
    "gemini_cli_unpriced_tokens": _unpriced,
    "gemini_cli_tool_calls": _calls("1", 0),
    "gemini_cli_tool_errors": _calls("error", 1),
    "gemini_cli_tool_cancellations": _calls("cancelled", 2),
    "gemini_cli_turn_prompt_tokens": _prompt_sizes,
    "gemini_cli_sessions": _sessions,
}
