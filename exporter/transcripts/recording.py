"""Work on the ledger that waits, again and again, while the ledger cannot be written."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from ..ledger.errors import LedgerUnavailableError
from ..ledger.model import Batch
from ..ledger.stats import Stats
from ..ledger.store import Ledger

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = (1.0, 30.0)

_Result = TypeVar("_Result")


class Recording:
    """Puts batches into the ledger and says in the stats how that goes.

    `stop` ends the wait: the error is then raised, as it is at once without a `stop`. Ledger errors
    that waiting cannot mend are raised too. `clock` returns milliseconds since the epoch.
    """

    def __init__(
        self,
        ledger: Ledger,
        stats: Stats,
        clock: Callable[[], int],
        stop: threading.Event | None,
    ) -> None:
        self._ledger = ledger
        self._stats = stats
        self._clock = clock
        self._stop = stop

    def record(self, batch: Batch) -> None:
        """Store a batch, and note how late its turns are counted."""
        started = self._stats.started * 1000
        for turn in self._patiently(lambda: self._ledger.record(batch), len(batch.turns)):
            if turn.time > started:
                self._stats.observe_lag(max(0.0, (self._clock() - turn.time) / 1000))

    def finish_scan(self, roots: Sequence[str]) -> None:
        """Note that these roots have been read completely."""
        self._patiently(lambda: self._ledger.finish_scan(roots))

    def tend(self) -> float:
        """Let the ledger store what scrapes changed; return the seconds until it must again."""
        due = self._patiently(self._ledger.tend)
        return math.inf if due is None else max(0.0, (due - self._clock()) / 1000)

    def copy_if_due(self) -> None:
        """Renew the ledger's copy once a day; that it cannot be written is only told."""
        try:
            self._ledger.copy_if_due()
        except LedgerUnavailableError as error:
            logger.warning("no copy of the ledger", extra={"fields": {"error": str(error)}})

    def _patiently(self, work: Callable[[], _Result], turns: int = 0) -> _Result:
        stats = self._stats
        delay, longest = _RETRY_SECONDS
        while True:
            try:
                result = work()
                break
            except LedgerUnavailableError as error:
                stats.ledger_errors += 1
                if stats.ledger_writable:
                    logger.error("turns stay pending", extra={"fields": {"error": str(error)}})
                stats.ledger_writable = False
                stats.pending_turns = turns
                if self._stop is None or self._stop.wait(delay):
                    raise
                delay = min(2 * delay, longest)
        if not stats.ledger_writable:
            logger.info("the ledger can be written again")
        stats.ledger_writable = True
        stats.pending_turns = 0
        return result
