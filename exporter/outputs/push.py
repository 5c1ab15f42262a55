"""Pushes the catalogue by OTLP, again and again, from a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final, Protocol

from opentelemetry.sdk.metrics.export import AggregationTemporality, MetricsData

from ..ledger.audience import Audience
from ..ledger.errors import LedgerError, LedgerUnavailableError
from ..ledger.stats import Stats
from ..ledger.store import Ledger
from .catalog import CATALOG
from .delta import Deltas, is_gauge
from .genai import GENAI
from .metric import View
from .otlp import count, points, request, resource
from .otlp_names import attributed
from .sender import Outcome

logger = logging.getLogger(__name__)

_FIRST_LOOK_SECONDS: Final = 0.5
"""How often to ask whether the first scan is complete."""
_STORING_SECONDS: Final = 10.0
_ENDING_SECONDS: Final = 5.0
"""How long the end of the program may wait for the last request."""


class Sending(Protocol):
    """What a sender does; see `sender.Sender`."""

    def send(self, data: MetricsData, points: int) -> tuple[Outcome, str]:
        """Send a request with so many points; return the outcome and what went wrong, if any."""

    def close(self) -> None:
        """End what goes on."""


class Pusher:
    """Sends everything at each interval; a receiver that fails delays nothing else.

    Only one request is kept in memory. Cumulative values need no memory of what was lost. With
    `delta` the ledger keeps what was confirmed and what may have arrived.
    """

    def __init__(
        self,
        ledger: Ledger,
        view: Callable[[Audience], View],
        sender: Sending,
        interval: float,
        stats: Stats,
        wake: threading.Event,
        *,
        delta: bool = False,
        genai: bool = False,
    ) -> None:
        """`interval` is in seconds; `wake` is set when the ledger must be tended to."""
        self._ledger = ledger
        self._view = view
        self._sender = sender
        self._interval = interval
        self._stats = stats
        self._wake = wake
        self._metrics = (*map(attributed, CATALOG), *(GENAI if genai else ()))
        self._resource = resource(ledger.id)
        self._deltas = Deltas(ledger.pushed(), self._metrics) if delta else None
        self._fault = ""
        self._time = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)

    def start(self) -> None:
        """Begin to push as soon as the ledger is complete."""
        self._thread.start()

    def stop(self) -> None:
        """Send what is left, unless nobody takes it or it takes long, and end.

        The calling thread must be the one that writes the ledger.
        """
        self._stop.set()
        if self._fault:
            self._sender.close()
        ends = monotonic() + _ENDING_SECONDS
        while self._thread.is_alive() and (rest := ends - monotonic()) > 0:
            self._wake.wait(rest)
            self._wake.clear()
            with suppress(LedgerError, LedgerUnavailableError):
                self._ledger.tend()
        if not self._fault:
            self._sender.close()

    def push(self) -> bool:
        """Make one request; return whether it was delivered and told of new series."""
        ledger = self._ledger
        ledger.asked(Audience.RECEIVER)
        view = self._view(Audience.RECEIVER)
        # Two values of one series never have the same time, nor is it set back with the clock.
        self._time = max(view.now, self._time + 1)
        view = view._replace(now=self._time)
        if self._deltas is None:
            held, data = view.held, self._cumulative(view)
        else:
            stored = self._deltas.stage(view)
            self._wake.set()
            try:
                stored.result(_STORING_SECONDS)
            except TimeoutError:
                self._tell("the ledger cannot be written")
                return False
            held, data = self._deltas.held, self._differences(view, self._deltas)
        outcome, fault = self._sender.send(data, count(data))
        self._tell(fault)
        if self._deltas is not None and self._deltas.settle(outcome):
            self._wake.set()
        if outcome is not Outcome.DELIVERED:
            return False
        if ledger.delivered(Audience.RECEIVER, held):
            self._wake.set()
        return bool(held)

    def _cumulative(self, view: View) -> MetricsData:
        starts = self._ledger.starts()
        families = ((metric, points(metric, view, starts)) for metric in self._metrics)
        return request(self._resource, families, AggregationTemporality.CUMULATIVE)

    def _differences(self, view: View, deltas: Deltas) -> MetricsData:
        told = deltas.points(view)
        families = (
            (metric, points(metric, view, {}) if is_gauge(metric) else told.get(metric.name, ()))
            for metric in self._metrics
        )
        return request(self._resource, families, AggregationTemporality.DELTA)

    def _run(self) -> None:
        try:
            self._push_until_stopped()
            if self._ledger.complete and not self._fault:
                self._push_last()
        finally:
            self._wake.set()

    def _push_until_stopped(self) -> None:
        rest = 0.0
        while not self._stop.wait(rest):
            if not self._ledger.complete:
                rest = _FIRST_LOOK_SECONDS
                continue
            started = monotonic()
            self._push_safely()
            rest = max(0.0, started + self._interval - monotonic())

    def _push_last(self) -> None:
        """Send what is left; where that told of new series as 0, their values too."""
        if self._push_safely() and self._deltas is None:
            shown = self._ledger.defer(lambda _: None)
            self._wake.set()
            with suppress(TimeoutError):
                shown.result(_STORING_SECONDS)
                self._push_safely()

    def _push_safely(self) -> bool:
        try:
            return self.push()
        except Exception as error:
            # What the libraries make of odd headers and addresses; their texts may hold secrets.
            logger.debug("a push has failed", exc_info=True)
            self._tell(f"unexpected {type(error).__name__}: see the log at --log.level debug")
            return False

    def _tell(self, fault: str) -> None:
        """Count a request, and log where failures begin and end."""
        self._stats.otlp_exports += 1
        if fault:
            self._stats.otlp_export_failures += 1
            level = logging.DEBUG if self._fault else logging.ERROR
            logger.log(level, "cannot push", extra={"fields": {"error": fault}})
        elif self._fault:
            logger.info("pushing again")
        self._fault = fault
