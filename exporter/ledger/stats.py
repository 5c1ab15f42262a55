"""The exporter's own counters since its start: what was read, skipped and refused."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import Final

LAG_EDGES: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper edges, in seconds, of the histogram of the time between a turn and its counting."""


class Stats:
    """Filled by one thread and read by others: a reader may see a value one step old, never torn.

    `files` is the number of transcripts by root, times are seconds since the epoch.
    """

    def __init__(
        self, started: float, skip_reasons: Iterable[str] = (), error_reasons: Iterable[str] = ()
    ) -> None:
        """Start at zero; the reasons are those that are shown before anything has happened."""
        self.started = started
        self.files: dict[str, int] = {}
        self.read_bytes = 0
        self.pending_bytes = 0
        self.pending_turns = 0
        self.skipped: Counter[str] = Counter(dict.fromkeys(skip_reasons, 0))
        self.file_errors: Counter[str] = Counter(dict.fromkeys(error_reasons, 0))
        self.scans = 0
        self.last_scan = 0.0
        self.watcher_mode = "poll"
        self.watcher_restarts = 0
        self.ledger_writable = True
        self.ledger_errors = 0
        self.otlp_exports = 0
        self.otlp_export_failures = 0
        self.lag_buckets = [0] * (len(LAG_EDGES) + 1)
        self.lag_sum = 0.0

    def observe_lag(self, seconds: float) -> None:
        """Add the time between a live turn's own time and its counting."""
        self.lag_buckets[bisect_left(LAG_EDGES, seconds)] += 1
        self.lag_sum += seconds
