"""What `serve` costs while nothing happens."""

from __future__ import annotations

import time
from collections.abc import Iterator

from .. import homes
from ..subject import Subject
from ..table import Row

_SECONDS = 90
"""Whole periods of the rescan (30 s), wherever in one the measurement begins."""

_SETTLE = 2.0


def rows(subject: Subject) -> Iterator[Row]:
    """Processor time and threads with 200 projects and 2,000 files, after the first scrapes."""
    files = subject.scaled(2_000, 2)
    home, truth = subject.home(homes.many(files, subject.scaled(200, 1)))
    with subject.serve(home, subject.ledger()) as server:
        subject.check(server, truth)
        for _ in range(3):
            server.scrape()
        time.sleep(_SETTLE * subject.scale)
        cpu, began = server.cpu, time.perf_counter()
        time.sleep(max(0.2, _SECONDS * subject.scale))
        share = (server.cpu - cpu) / (time.perf_counter() - began)
        threads = server.threads
    what = f"idle, {files:,} files"
    yield Row(f"{what}: CPU of a core", value=share * 100, limit=1, goal=0.3, unit="%")
    yield Row(f"{what}: threads", value=threads, limit=12, goal=12)
