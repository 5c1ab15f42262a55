"""Starts, stops and supervises the long-running parts, and scans once for a look at the numbers."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from . import __version__
from .ledger.budgets import Budgets, Calendar, Period
from .ledger.errors import LedgerError, LedgerUnavailableError
from .ledger.pricing import PriceBook, PriceOverride, PriceTier
from .ledger.stats import Stats
from .ledger.store import Ledger
from .outputs.prometheus import Exposition
from .transcripts.collector import Collector, Progress
from .transcripts.files import ERROR_REASONS
from .transcripts.reader import spare_the_collector
from .transcripts.shapes import Reason

if TYPE_CHECKING:
    from .settings import ModelPrice, PriceAbove, Settings, Spendable

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 5.0

_SWITCH_SECONDS: Final = 0.001
"""Lets a scrape be answered soon while the collector is decoding."""


class ServiceError(Exception):
    """The program cannot go on; the message is one line and says what to do."""


def once(settings: Settings) -> int:
    """Read what is new, print the whole exposition to standard output and return 0."""
    spare_the_collector()
    stats = _new_stats()
    with _ledger(settings) as ledger, _progress() as progress:
        collector = Collector(_roots(settings), ledger, stats, _now, progress=progress)
        with closing(collector):
            collector.scan()
        exposition = Exposition(ledger, stats, _now, _budgets(settings), process=False).render()
    sys.stdout.buffer.write(exposition)
    return 0


def serve(settings: Settings) -> int:
    """Follow the transcripts and answer scrapes until SIGTERM or SIGINT, then return 0."""
    from .answers import Answers
    from .outputs.web import WebError, WebServer, bind
    from .settings import WatchMode
    from .transcripts.mounts import is_remote
    from .transcripts.watcher import Watcher

    sys.setswitchinterval(_SWITCH_SECONDS)
    spare_the_collector()
    stop, wake = threading.Event(), threading.Event()

    def leave(*_: object) -> None:
        stop.set()
        wake.set()

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    stats = _new_stats()
    roots = _roots(settings)
    pages = Answers(stats, wake.set)
    with ExitStack() as parts:
        try:
            sockets = [parts.enter_context(bind(*at)) for at in settings.web.listen_address]
            server = WebServer(
                pages,
                sockets,
                version=__version__,
                metrics_path=settings.web.telemetry_path,
                allowed_hosts=settings.web.allowed_host,
            )
            server.start()
        except WebError as error:
            raise ServiceError(str(error)) from None
        parts.callback(server.stop)
        path = settings.web.telemetry_path
        for address in server.addresses:
            logger.info("serving", extra={"fields": {"url": f"http://{address}{path}"}})
        ledger = parts.enter_context(_ledger(settings, server.addresses[0], stop))
        created = settings.web.created_timestamps
        pages.show(ledger, Exposition(ledger, stats, _now, _budgets(settings), created=created))
        mode = settings.watch.mode
        polled = {
            root
            for root in roots
            if mode is WatchMode.POLL or (mode is WatchMode.AUTO and is_remote(root))
        }
        watcher = Watcher([root for root in roots if root not in polled], wake.set)
        if polled < set(roots):
            watcher.start()
            parts.callback(watcher.stop)
        collector = Collector(roots, ledger, stats, _now, stop=stop, polled=polled)
        parts.enter_context(closing(collector))
        try:
            collector.run(watcher, wake, settings.transcripts.rescan_interval)
        except LedgerUnavailableError as error:
            fields = {"turns": stats.pending_turns, "error": str(error)}
            logger.error("stopped; these turns are read again", extra={"fields": fields})
    logger.info("stopped")
    return 0


def _now() -> int:
    return time.time_ns() // 1_000_000


def _roots(settings: Settings) -> list[str]:
    return [str(root) for root in settings.transcripts.root]


def _new_stats() -> Stats:
    return Stats(time.time(), Reason, ERROR_REASONS)


@contextmanager
def _ledger(
    settings: Settings, address: str = "", stop: threading.Event | None = None
) -> Iterator[Ledger]:
    """Open the ledger for as long as the block runs; its errors become ServiceError.

    With `stop`, a ledger that cannot be opened for the moment (full disk, busy file) is waited for
    until it is set.
    """
    overrides = {name: _override(price) for name, price in settings.pricing.models.items()}
    book = PriceBook(overrides, settings.pricing.multiplier)
    show = settings.labels.project
    waiting = False
    try:
        while True:
            try:
                hold = round(1000 * settings.web.zero_first_hold)
                ledger = Ledger(settings.ledger.path, book, _now, show, address, hold)
                break
            except LedgerUnavailableError as error:
                if not waiting:
                    logger.error("waiting for the ledger", extra={"fields": {"error": str(error)}})
                waiting = True
                if stop is None or stop.wait(_RETRY_SECONDS):
                    raise
        with closing(ledger):
            yield ledger
    except (LedgerError, LedgerUnavailableError) as error:
        raise ServiceError(str(error)) from None


def _budgets(settings: Settings) -> Budgets:
    from .values import LOCAL

    name = settings.budget.timezone
    return Budgets(
        Calendar(None if name == LOCAL else ZoneInfo(name)),
        _amounts(settings.budget),
        {project: _amounts(budget) for project, budget in settings.budget.projects.items()},
    )


def _amounts(budget: Spendable) -> dict[Period, Decimal]:
    amounts = {Period.DAY: budget.day, Period.WEEK: budget.week, Period.MONTH: budget.month}
    return {period: usd for period, usd in amounts.items() if usd is not None}


def _override(price: ModelPrice) -> PriceOverride:
    above = price.above
    return PriceOverride(
        price=_tier(price) if price.input is not None else None,
        above_tokens=above.tokens if above is not None else 0,
        above=_tier(above) if above is not None else None,
        price_as=price.price_as or "",
        multiplier=price.multiplier,
        start=price.from_ or date.min,
        end=price.to or date.max,
    )


def _tier(price: ModelPrice | PriceAbove) -> PriceTier:
    assert price.input is not None
    assert price.output is not None
    return PriceTier(price.input, price.output, price.cached)


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """Show a progress bar on a terminal's standard error; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    with Bar(
        "reading transcripts",
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("read", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
