"""Starts, stops and supervises the long-running parts, and scans once for a look at the numbers."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Final

from . import __version__
from .ledger.errors import LedgerError, LedgerUnavailableError
from .ledger.pricing import PriceBook, PriceOverride, PriceTier
from .ledger.stats import Stats
from .ledger.store import Ledger
from .outputs.prometheus import Exposition, negotiate
from .transcripts.collector import Collector, Progress
from .transcripts.files import ERROR_REASONS
from .transcripts.reader import spare_the_collector
from .transcripts.shapes import Reason

if TYPE_CHECKING:
    from .settings import ModelPrice, PriceAbove, Settings

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
        exposition = Exposition(ledger, stats, _now, process=False).render()
    sys.stdout.buffer.write(exposition)
    return 0


def serve(settings: Settings) -> int:
    """Follow the transcripts and answer scrapes until SIGTERM or SIGINT, then return 0."""
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
    pages = _Pages(stats)
    with ExitStack() as parts:
        try:
            sockets = [parts.enter_context(bind(*at)) for at in settings.web.listen_address]
            server = WebServer(
                pages, sockets, version=__version__, allowed_hosts=settings.web.allowed_host
            )
            server.start()
        except WebError as error:
            raise ServiceError(str(error)) from None
        parts.callback(server.stop)
        for address in server.addresses:
            logger.info("serving", extra={"fields": {"url": f"http://{address}/metrics"}})
        ledger = parts.enter_context(_ledger(settings, server.addresses[0], stop))
        pages.show(ledger)
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


class _Pages:
    """What the web pages show of this exporter."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._ledger: Ledger | None = None

    def show(self, ledger: Ledger) -> None:
        """Show this ledger, now that it could be opened."""
        self._exposition = Exposition(ledger, self._stats, _now)
        self._ledger = ledger

    def metrics(self, accept: str) -> tuple[bytes, str] | None:
        """Render the exposition; see `web.Pages`."""
        if self._ledger is None or not self._ledger.complete:
            return None
        content_type = negotiate(accept)
        return self._exposition.render(content_type), content_type

    def not_ready(self) -> str | None:
        """Say what is waited for; see `web.Pages`."""
        if self._ledger is None:
            return "the ledger cannot be opened yet"
        if not self._ledger.complete:
            return f"the first scan is running, {self._stats.pending_bytes:,} bytes to go"
        if not self._stats.ledger_writable:
            return f"the ledger cannot be written, {self._stats.pending_turns} turns are pending"
        return None

    def facts(self) -> list[tuple[str, str]]:
        """Return the lines of the landing page; see `web.Pages`."""
        if self._ledger is None:
            return []
        stats = self._stats
        snapshot = self._ledger.snapshot()
        last = max((activity.last_turn for activity in snapshot.activity.values()), default=0)
        return [
            ("Turns in the ledger", f"{snapshot.ledger_turns:,}"),
            ("Last turn", _moment(last / 1000) if last else "none yet"),
            ("Transcripts", f"{sum(stats.files.values()):,} in {', '.join(stats.files) or 'none'}"),
            ("Changes noticed by", stats.watcher_mode),
            ("Ledger", str(self._ledger.path)),
            ("Running since", _moment(stats.started)),
        ]


def _now() -> int:
    return time.time_ns() // 1_000_000


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


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
                ledger = Ledger(settings.ledger.path, book, _now, show, address)
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
