"""What the web pages show of this exporter, and what its answers do to new series."""

from __future__ import annotations

from collections.abc import Callable, Container
from datetime import UTC, datetime
from functools import partial

from .ledger.audience import Audience
from .ledger.stats import Stats
from .ledger.store import Ledger
from .ledger.totals import SeriesName
from .outputs.pages import Page
from .outputs.prometheus import Exposition, negotiate


class Answers:
    """The pages of a ledger, which may not be open yet; see `outputs.pages`."""

    def __init__(self, stats: Stats, wake: Callable[[], None]) -> None:
        """`wake` is called when the ledger must be tended to earlier than it knows."""
        self._stats = stats
        self._wake = wake
        self._ledger: Ledger | None = None

    def show(self, ledger: Ledger, exposition: Exposition) -> None:
        """Show this ledger, now that it could be opened."""
        self._exposition = exposition
        self._ledger = ledger

    def metrics(self, accept: str, scraper: bool) -> Page | None:
        """Render the exposition; see `pages.Pages`."""
        if self._ledger is None or not self._ledger.complete:
            return None
        if scraper:
            self._ledger.asked(Audience.SCRAPERS)
        content_type = negotiate(accept)
        view = self._exposition.view(Audience.SCRAPERS if scraper else None)
        body = self._exposition.render(content_type, view)
        delivered = partial(self._delivered, self._ledger, view.held) if scraper else None
        return Page(body, content_type, delivered)

    def _delivered(self, ledger: Ledger, zeros: Container[SeriesName]) -> None:
        if ledger.delivered(Audience.SCRAPERS, zeros):
            self._wake()

    def not_ready(self) -> str | None:
        """Say what is waited for; see `pages.Pages`."""
        if self._ledger is None:
            return "the ledger cannot be opened yet"
        if not self._ledger.complete:
            return f"the first scan is running, {self._stats.pending_bytes:,} bytes to go"
        if not self._stats.ledger_writable:
            return f"the ledger cannot be written, {self._stats.pending_turns} turns are pending"
        return None

    def facts(self) -> list[tuple[str, str]]:
        """Return the lines of the landing page; see `pages.Pages`."""
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


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
