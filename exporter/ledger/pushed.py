"""What a receiver of differences has confirmed, and what is on its way to it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from concurrent.futures import Future

import msgspec

from .deferred import Work
from .meta import get_meta, set_meta

Totals = tuple[int | float, ...]
"""The numbers of one series: a counter's value, or a histogram's counts by bucket and its sum."""

Confirmed = dict[str, Totals]
"""Totals by the name of the series, which whoever keeps them here chooses."""


class Pending(msgspec.Struct, frozen=True):
    """A request that may have arrived: what the series had before it, and what they have with it.

    Times are milliseconds since the epoch: of the last confirmed request, and of this one.
    """

    since: int
    time: int
    before: Confirmed
    after: Confirmed


class Pushed:
    """The state of differences, written before and after each request; one thread uses it."""

    def __init__(self, db: sqlite3.Connection, defer: Callable[[Work], Future[None]]) -> None:
        """Load the state; `defer` has what changes written."""
        self._defer = defer
        self.confirmed: Confirmed = {
            series: msgspec.json.decode(value, type=Totals)
            for series, value in db.execute("SELECT series, value FROM pushed")
        }
        self.since: int | None = get_meta(db, "pushed_until")
        """When the last confirmed request was made; None if there was none yet."""
        self.pending: Pending | None = None
        if (text := get_meta(db, "pushing")) is not None:
            self.pending = msgspec.json.decode(text, type=Pending)

    def stage(self, pending: Pending, known: Mapping[str, Totals]) -> Future[None]:
        """Keep a request that is about to be made, and totals that no request need tell.

        It must be stored before it is made: the future says when.
        """
        self.pending = pending
        self.confirmed.update(known)
        text = msgspec.json.encode(pending).decode()

        def work(db: sqlite3.Connection) -> None:
            _write(db, known)
            set_meta(db, pushing=text)

        return self._defer(work)

    def confirm(self) -> None:
        """Note that the pending request has arrived."""
        pending, self.pending = self.pending, None
        assert pending is not None
        self.confirmed.update(pending.after)
        self.since = pending.time

        def work(db: sqlite3.Connection) -> None:
            _write(db, pending.after)
            set_meta(db, pushed_until=pending.time, pushing=None)

        self._defer(work)

    def refuse(self) -> None:
        """Note that nothing of the pending request has arrived nor will."""
        self.pending = None

        def work(db: sqlite3.Connection) -> None:
            set_meta(db, pushing=None)

        self._defer(work)


def _write(db: sqlite3.Connection, totals: Mapping[str, Totals]) -> None:
    db.executemany(
        "INSERT OR REPLACE INTO pushed VALUES (?, ?)",
        [(series, msgspec.json.encode(value).decode()) for series, value in totals.items()],
    )
