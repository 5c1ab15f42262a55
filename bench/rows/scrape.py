"""A scrape as Prometheus makes it, when something has changed since the last one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

from .. import homes, ledgers
from ..process import CommandError
from ..server import sample_lines
from ..subject import Subject
from ..table import Row
from ..writer import Writer

_PROJECTS = 21
_SCRAPES = 50
_PAUSE = 0.1
"""Seconds after each append: enough for it to be counted, which is checked."""


def rows(subject: Subject) -> Iterator[Row]:
    """The median time of a request for 5,000 series; nothing is asked between append and scrape."""
    home, truth = subject.copy(homes.many(1, 1))
    (transcript,) = homes.transcripts(home)
    ledger = subject.ledger()
    ledgers.with_series(ledger, subject.scaled(_PROJECTS, 1))
    writer, times, wanted = Writer(home, truth), list[float](), subject.scaled(_SCRAPES, 3)
    with subject.serve(home, ledger) as server:
        last = _turns(server.scrape())
        for _ in range(2 * wanted):
            writer.append(transcript)
            time.sleep(_PAUSE)
            began = time.perf_counter()
            scraped = server.scrape()
            taken = time.perf_counter() - began
            turns = _turns(scraped)
            if turns > last:
                times.append(taken)
            if len(times) == wanted:
                break
            last = turns
        else:
            raise CommandError(f"replies are not counted within {_PAUSE} s")
    lines = sample_lines(scraped)
    times.sort()
    yield Row(
        f"scrape of {len(lines):,} series after a change",
        f"{times[0] * 1e3:.1f} to {times[-1] * 1e3:.1f} ms, {len(scraped) / 1e3:.0f} kB",
        value=statistics.median(times) * 1_000,
        limit=100,
        goal=30,
        unit="ms",
    )


def _turns(scraped: bytes) -> float:
    name = "gemini_cli_exporter_ledger_turns "
    return float(next(line for line in sample_lines(scraped) if line.startswith(name)).split()[1])
