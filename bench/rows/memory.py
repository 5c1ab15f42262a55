"""The memory of `serve`."""

from __future__ import annotations

from collections.abc import Iterator

from .. import homes
from ..subject import Subject
from ..table import Row

_SCRAPES = 6


def rows(subject: Subject) -> Iterator[Row]:
    """The peak while it reads one large file, and what it keeps after the cold scan of a home."""
    home, truth = subject.home(homes.long(subject.scale))
    with subject.serve(home, subject.ledger()) as server:
        peak = server.peak
        subject.check(server, truth)
    yield Row(
        "memory of serve: peak on the 256 MB transcript",
        value=peak / 1e6,
        limit=150,
        goal=100,
        unit="MB",
    )
    home, truth = subject.home(homes.standard("jsonl", subject.scale))
    with subject.serve(home, subject.ledger()) as server:
        subject.check(server, truth)
        for _ in range(_SCRAPES):
            server.scrape()
        peak, resident = server.peak, server.resident
    yield Row(
        "memory of serve: steady after the cold scan",
        f"peak {peak / 1e6:.0f} MB",
        value=resident / 1e6,
        limit=100,
        goal=70,
        unit="MB",
    )
