"""The first scan of a home into a new ledger, in pairs with ccusage."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

from exporter.demo import Format

from .. import homes, rival
from ..process import Run
from ..subject import Subject
from ..table import Row, megabytes, seconds

_Pairs = list[tuple[Run, Run]]


def jsonl(subject: Subject) -> Iterator[Row]:
    """The format of today."""
    pairs = _measure(subject, "jsonl")
    yield _compared("cold scan of .jsonl: CPU", pairs, lambda one: one.cpu, seconds, 2.0)
    yield _compared("cold scan of .jsonl: wall time", pairs, lambda one: one.wall, seconds, 2.5)
    yield _compared("cold scan of .jsonl: peak memory", pairs, lambda one: one.peak, megabytes, 1.5)


def json(subject: Subject) -> Iterator[Row]:
    """The format of before."""
    pairs = _measure(subject, "json")
    yield _compared("cold scan of .json: CPU", pairs, lambda one: one.cpu, seconds, 2.0)
    yield _compared("cold scan of .json: peak memory", pairs, lambda one: one.peak, megabytes, 1.5)


def _measure(subject: Subject, era: Format) -> _Pairs:
    program = rival.install()
    home, truth = subject.home(homes.standard(era, subject.scale))
    pairs: _Pairs = []
    for _ in range(subject.runs):
        ours = subject.scan(home, subject.ledger(), truth)
        pairs.append((ours, rival.scan(program, home, subject.env)))
    excess = rival.excess(pairs[-1][1], truth)
    print(
        f".{era}: {truth.size / 1e6:,.0f} MB, {truth.total.turns:,} turns, {truth.files} files; "
        f"counts are exact, ccusage counts {excess:+.3%} tokens"
    )
    return pairs


def _compared(
    what: str,
    pairs: _Pairs,
    figure: Callable[[Run], float],
    shown: Callable[[float], str],
    limit: float,
) -> Row:
    ours, theirs = ([figure(one) for one in side] for side in zip(*pairs, strict=True))
    return Row(
        what,
        shown(statistics.median(ours)),
        shown(statistics.median(theirs)),
        statistics.median(a / b for a, b in zip(ours, theirs, strict=True)),
        limit,
        1.0,
    )
