"""The commands that end by themselves: once, history, check and assets."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from .ledger.errors import LedgerError
from .outputs.prometheus import Exposition
from .parts import (
    ServiceError,
    budgets_of,
    new_stats,
    now,
    opened_ledger,
    receiver_wanted,
    roots_of,
    sender_of,
    web_config_of,
)
from .transcripts.collector import Collector, Progress
from .transcripts.reader import spare_the_collector

if TYPE_CHECKING:
    from .commands import Assets, History
    from .settings import Settings


def once(settings: Settings) -> int:
    """Read what is new, print the whole exposition to standard output and return 0."""
    spare_the_collector()
    stats = new_stats()
    with opened_ledger(settings) as ledger, _progress("reading transcripts") as progress:
        collector = Collector(roots_of(settings), ledger, stats, now, progress=progress)
        with closing(collector):
            collector.scan()
        exposition = Exposition(ledger, stats, now, budgets_of(settings), process=False).render()
    sys.stdout.buffer.write(exposition)
    return 0


def history(settings: Settings, wanted: History) -> int:
    """Write the ledger's past to standard output as OpenMetrics and return 0."""
    from .outputs.history import HistoryError, HistoryOptions, parse_label, write_history

    try:
        labels = dict(map(parse_label, wanted.label))
        options = HistoryOptions(labels, wanted.start, wanted.end, wanted.allow_overlap)
        with _progress("writing history") as progress:
            write_history(settings.ledger.path, sys.stdout.buffer, options, progress)
    except (HistoryError, LedgerError) as error:
        raise ServiceError(str(error)) from None
    return 0


def check(settings: Settings) -> int:
    """Check what the settings refer to, as they are checked themselves already, and return 0."""
    web_config_of(settings)
    if (receiver := receiver_wanted(settings)) is not None:
        sender_of(receiver).close()
    print("the configuration can be used")
    return 0


def assets(wanted: Assets) -> int:
    """Write the bundled dashboards, rules and deploy files into a folder and return 0."""
    from .assets import AssetsError, write_assets

    try:
        files = write_assets(wanted.folder)
    except AssetsError as error:
        raise ServiceError(str(error)) from None
    print(f"{len(files)} files written to {wanted.folder}; start with deploy/README.md")
    return 0


@contextmanager
def _progress(what: str) -> Iterator[Progress | None]:
    """Show a progress bar on a terminal's standard error; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    with Bar(
        what,
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("read", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
