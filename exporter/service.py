"""Starts, stops and supervises the long-running parts: the server, and the demonstration."""

from __future__ import annotations

import _thread
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from . import __version__
from .ledger.errors import LedgerUnavailableError
from .outputs.prometheus import Exposition
from .outputs.receiver import Temporality
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
from .transcripts.collector import Collector
from .transcripts.reader import spare_the_collector

if TYPE_CHECKING:
    from .ledger.stats import Stats
    from .ledger.store import Ledger
    from .outputs.pages import Pages
    from .outputs.receiver import Receiver
    from .settings import Settings

logger = logging.getLogger(__name__)

_SWITCH_SECONDS: Final = 0.001
"""Lets a scrape be answered soon while the collector is decoding."""

_DEMO_BUDGET: Final = {"day": 8, "week": 30, "month": 100}


def serve(settings: Settings) -> int:
    """Follow the transcripts and answer scrapes until SIGTERM or SIGINT, then return 0."""
    from .answers import Answers
    from .settings import WatchMode
    from .transcripts.layout import matching
    from .transcripts.mounts import is_remote
    from .transcripts.watcher import Watcher

    sys.setswitchinterval(_SWITCH_SECONDS)
    spare_the_collector()
    stop, wake = threading.Event(), threading.Event()
    leave = leaving(stop, wake)
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    stats = new_stats()
    roots = roots_of(settings)
    pages = Answers(stats, wake.set)
    receiver = receiver_wanted(settings)
    with ExitStack() as parts:
        address = parts.enter_context(_web(settings, pages)) if settings.web.enabled else ""
        ledger = parts.enter_context(opened_ledger(settings, address, stop))
        created = settings.web.created_timestamps
        exposition = Exposition(ledger, stats, now, budgets_of(settings), created=created)
        pages.show(ledger, exposition)
        mode = settings.watch.mode
        found = matching(roots)
        places = {*roots, *found}
        polled = {
            place
            for place in places
            if mode is WatchMode.POLL or (mode is WatchMode.AUTO and is_remote(place))
        }
        watcher = Watcher([place for place in found if place not in polled], wake.set)
        if polled < places:
            watcher.start()
            parts.callback(watcher.stop)
        collector = Collector(roots, ledger, stats, now, stop=stop, polled=polled)
        parts.enter_context(closing(collector))
        if receiver is not None:
            parts.enter_context(_pushed(receiver, settings, ledger, exposition, stats, wake))
        try:
            collector.run(watcher, wake, settings.transcripts.rescan_interval)
        except LedgerUnavailableError as error:
            fields = {"turns": stats.pending_turns, "error": str(error)}
            logger.error("stopped; these turns are read again", extra={"fields": fields})
    logger.info("stopped")
    return 0


def leaving(stop: threading.Event, wake: threading.Event) -> Callable[..., None]:
    """Return a handler of signals that sets both.

    A thread does that: the main thread, in which handlers run, may hold the lock of an event at
    that moment, and would wait for itself.
    """

    def leave() -> None:
        stop.set()
        wake.set()

    def handle(*_: object) -> None:
        if not stop.is_set():
            _thread.start_new_thread(leave, ())  # `threading` would take locks of its own

    return handle


def demo(settings: Settings) -> int:
    """Serve an invented home with a past, which goes on being used, until SIGTERM or SIGINT.

    Home and ledger are in a temporary folder that is gone afterwards.
    """
    from .demo import LiveHome
    from .settings import Ledger, Transcripts

    with TemporaryDirectory(prefix="gemini-cli-exporter-demo-") as folder:
        home = LiveHome(Path(folder), now)
        home.write_past()
        budget = settings.budget
        if not budget.model_fields_set & _DEMO_BUDGET.keys():
            budget = type(budget).model_validate(budget.model_dump() | _DEMO_BUDGET)
        settings = settings.model_copy(
            update={
                "transcripts": Transcripts(root=(home.root,)),
                "ledger": Ledger(path=Path(folder, "ledger.db")),
                "budget": budget,
            }
        )
        logger.info("the usage is invented", extra={"fields": {"home": str(home.root)}})
        end = threading.Event()
        life = threading.Thread(target=home.run, args=(end,), name="demo")
        life.start()
        try:
            return serve(settings)
        finally:
            end.set()
            life.join()


@contextmanager
def _pushed(
    receiver: Receiver,
    settings: Settings,
    ledger: Ledger,
    exposition: Exposition,
    stats: Stats,
    wake: threading.Event,
) -> Iterator[None]:
    """Push metrics for as long as the block runs; raises ConfigError without the libraries."""
    sender = sender_of(receiver)
    from .outputs.push import Pusher

    pusher = Pusher(
        ledger,
        exposition.view,
        sender,
        receiver.interval,
        stats,
        wake,
        delta=receiver.temporality is not Temporality.CUMULATIVE,
        genai=settings.otlp.genai,
    )
    fields = {"endpoint": receiver.endpoint, "protocol": str(receiver.protocol)}
    logger.info("pushing", extra={"fields": fields})
    pusher.start()
    try:
        yield
    finally:
        pusher.stop()


@contextmanager
def _web(settings: Settings, pages: Pages) -> Iterator[str]:
    """Answer requests for as long as the block runs, and yield where; raises ServiceError."""
    from .outputs.web import WebError, WebServer, bind

    web = settings.web
    with ExitStack() as open_sockets:
        try:
            sockets = [open_sockets.enter_context(bind(*at)) for at in web.listen_address]
            server = WebServer(
                pages,
                sockets,
                version=__version__,
                metrics_path=web.telemetry_path,
                allowed_hosts=web.allowed_host,
                config=web_config_of(settings),
            )
            server.start()
        except WebError as error:
            raise ServiceError(str(error)) from None
        try:
            for address in server.addresses:
                url = f"{server.scheme}://{address}{web.telemetry_path}"
                logger.info("serving", extra={"fields": {"url": url}})
            yield server.addresses[0]
        finally:
            server.stop()
