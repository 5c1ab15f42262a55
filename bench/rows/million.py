"""A ledger with a million turns: how long `serve` takes to start, and how large the file is."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator

from .. import ledgers
from ..process import CommandError
from ..subject import Subject
from ..table import Row

_TURNS = 1_000_000


def rows(subject: Subject) -> Iterator[Row]:
    """Start it several times with a copy, on a home whose transcripts are long gone."""
    turns = subject.scaled(_TURNS, 1_000)
    kept, ledger = ledgers.with_turns(subject.folder, turns), subject.ledger()
    shutil.copyfile(kept, ledger)
    starts: list[float] = []
    for _ in range(subject.runs):
        with subject.serve(subject.empty(), ledger) as server:
            starts.append(server.start_seconds)
            found = server.value("gemini_cli_exporter_ledger_turns")
            if found != turns:
                raise CommandError(f"the ledger has {turns:,} turns, it shows {found:,.0f}")
    size = kept.stat().st_size
    what = f"ledger of {turns:,} turns"
    spread = f"{min(starts):.2f} to {max(starts):.2f} s"
    yield Row(f"{what}: start to ready", spread, "", statistics.median(starts), 3, 1, "s")
    yield Row(
        f"{what}: bytes a turn with its calls",
        f"{size / 1e6:.0f} MB",
        value=size / turns,
        limit=250,
        goal=120,
        unit="B",
    )
