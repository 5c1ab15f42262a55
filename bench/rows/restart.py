"""A start with a ledger that knows everything already, against one that has nothing to know."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from exporter.demo import Truth

from .. import homes
from ..process import CommandError, Run, opened
from ..subject import Subject
from ..table import Row, seconds


def rows(subject: Subject) -> Iterator[Row]:
    """Triples of a cold scan, the same again, and one of an empty home."""
    home, truth = subject.home(homes.standard("jsonl", subject.scale))
    empty, blank, nothing = subject.empty(), subject.ledger(), Truth()
    subject.scan(empty, blank, nothing)
    triples: list[tuple[Run, Run, Run]] = []
    for _ in range(subject.runs):
        ledger = subject.ledger()
        first, again = subject.scan(home, ledger, truth), subject.scan(home, ledger, truth)
        triples.append((first, again, subject.scan(empty, blank, nothing)))
    what = "unchanged restart: transcripts opened"
    paths = set(map(str, homes.transcripts(home)))
    try:
        number = opened(subject.once(home, ledger), subject.env, paths)
        yield Row(what, str(number), "", number, 0, 0)
    except CommandError as error:
        yield Row(what, note=f"skipped: {error}")
    yield Row(
        "unchanged restart: CPU beyond empty, against the cold scan",
        seconds(statistics.median(again.cpu - idle.cpu for _, again, idle in triples)),
        seconds(statistics.median(first.cpu for first, _, _ in triples)),
        statistics.median((again.cpu - idle.cpu) / first.cpu for first, again, idle in triples),
        1 / 10,
        1 / 50,
    )
    idle = statistics.median(idle.cpu for _, _, idle in triples)
    yield Row("empty home: CPU", seconds(idle), note="for information")
