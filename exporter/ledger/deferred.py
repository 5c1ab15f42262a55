"""Work that other threads leave to the one that writes the ledger."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

Work = Callable[[sqlite3.Connection], None]
"""Something to be done inside a transaction, once it is committed."""


class Deferred:
    """Work in its order; any thread adds to it, one does it."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Work, Future[None]]] = deque()
        self._doing: list[tuple[Work, Future[None]]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, work: Work) -> Future[None]:
        """Return what becomes done when the work is committed."""
        future: Future[None] = Future()
        self._waiting.append((work, future))
        return future

    def do(self, db: sqlite3.Connection) -> None:
        """Do all that waits, inside a transaction that may fail and be tried again."""
        self._doing = list(self._waiting)
        for work, _ in self._doing:
            work(db)

    def done(self) -> None:
        """Say that the transaction is committed."""
        for _, future in self._doing:
            self._waiting.popleft()
            future.set_result(None)
        self._doing = []
