"""A pusher that is stepped: its requests go to a receiver in the same process, on a set clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics.export import MetricsData

from exporter.ledger.labels import DEFAULT_RULES, LabelRules
from exporter.ledger.stats import Stats
from exporter.ledger.store import Ledger
from exporter.outputs.prometheus import Exposition
from exporter.outputs.push import Pusher
from exporter.outputs.sender import Outcome
from exporter.transcripts.files import ERROR_REASONS
from exporter.transcripts.shapes import Reason
from tests.otlp_points import Attributes, Point, decoded
from tests.support import BOOK, Clock

Verdict = tuple[bool, Outcome]
"""Whether a request arrives, and what the sender makes of it."""

TAKEN: Verdict = (True, Outcome.DELIVERED)
LOST: Verdict = (False, Outcome.UNKNOWN)
UNREACHED: Verdict = (False, Outcome.UNREACHED)
UNHEARD: Verdict = (True, Outcome.UNKNOWN)
"""The request arrives and its answer does not."""
REFUSED: Verdict = (False, Outcome.REFUSED)


class Mailbox:
    """A sender whose requests end here; `verdict` decides on each."""

    def __init__(self, verdict: Callable[[], Verdict] = lambda: TAKEN) -> None:
        self.verdict = verdict
        self.arrived: list[Sequence[Point]] = []
        self.sent: list[Sequence[Point]] = []
        self.closed = False

    def send(self, data: MetricsData, points: int) -> tuple[Outcome, str]:
        request = tuple(decoded(encode_metrics(data).SerializeToString()))
        assert len(request) == points
        self.sent.append(request)
        arrives, outcome = self.verdict()
        if arrives:
            self.arrived.append(request)
        return outcome, "" if outcome is Outcome.DELIVERED else outcome.value

    def close(self) -> None:
        self.closed = True


class _Tending(threading.Event):
    """Wakes nobody: the ledger is tended to at once, by whoever would have woken its writer."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def set(self) -> None:
        self._ledger.tend()


class Pushing:
    """A ledger and its pusher, restarted at will; the clock and the mailbox stay."""

    def __init__(
        self,
        folder: Path,
        *,
        delta: bool = False,
        genai: bool = False,
        rules: LabelRules = DEFAULT_RULES,
    ) -> None:
        self.clock = Clock()
        self.mailbox = Mailbox()
        self._path = folder / "ledger.db"
        self.delta, self._genai, self._rules = delta, genai, rules
        self.start()

    def start(self) -> None:
        """Start, as the program does; nothing is pushed yet."""
        self.ledger = Ledger(self._path, BOOK, self.clock, self._rules)
        self.stats = Stats(self.clock.now / 1000, Reason, ERROR_REASONS)
        self.exposition = Exposition(self.ledger, self.stats, self.clock)
        self.pusher = Pusher(
            self.ledger,
            self.exposition.view,
            self.mailbox,
            60.0,
            self.stats,
            _Tending(self.ledger),
            delta=self.delta,
            genai=self._genai,
        )

    def restart(self) -> None:
        """End at once, as if killed, and start again."""
        self.ledger.close()
        self.start()

    def push(self) -> dict[tuple[str, Attributes], Point]:
        """Push a minute later, and return what was sent by name and attributes."""
        self.clock.now += 60_000
        self.pusher.push()
        return by_series(self.mailbox.sent[-1])


def by_series(points: Sequence[Point]) -> dict[tuple[str, Attributes], Point]:
    """Return points by name and attributes; fail if a request has two of one series."""
    found = {(point.name, point.attributes): point for point in points}
    assert len(found) == len(points)
    return found
