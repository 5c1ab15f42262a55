"""The ledger: every turn and tool call counted once, priced, and summed, in one SQLite file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import uuid4

from .counting import Counting, SeriesKey
from .labels import ProjectLabel
from .lock import LedgerLock
from .memory import Memory
from .model import Batch, FileCursor, Turn
from .names import Names
from .pricing import PriceBook
from .recovery import copy_of, make_copy, open_ledger
from .schema import translate, unusable
from .totals import Snapshot

_COPY_MS: Final = 86_400_000
_COPY_RETRY_MS: Final = 3_600_000

_Result = TypeVar("_Result")


class Ledger:
    """Takes batches of turns and gives totals. It reads no transcript and no clock of its own.

    One thread writes; `snapshot` may be called from any other. `clock` returns milliseconds since
    the epoch. `address` is only told to whoever finds the ledger locked.
    """

    def __init__(
        self,
        path: Path,
        book: PriceBook,
        clock: Callable[[], int],
        show: ProjectLabel = ProjectLabel.SLUG,
        address: str = "",
    ) -> None:
        """Open or create the ledger; a damaged one is replaced by its copy.

        Raises LedgerError if it is in use, too new or cannot be made, and LedgerUnavailableError if
        that may pass.
        """
        self.path = path
        self._book = book
        self._clock = clock
        self._names: Names
        self._copy_due = 0
        self._copied = -1
        """Generation of the last copy; -1 is one from before the start."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = LedgerLock(path, address)
        except OSError as error:
            raise unusable(path, error) from None
        try:
            self._db, replaced = open_ledger(path, clock())
            try:
                self._load(show, replaced)
            except sqlite3.Error as error:
                self._db.close()
                raise translate(error, path) from None
        except BaseException:
            self._lock.release()
            raise

    def close(self) -> None:
        """Close the file and give the lock back; it may be closed already."""
        self._db.close()
        self._lock.release()

    @property
    def created(self) -> int:
        """When this ledger was made, in milliseconds since the epoch."""
        return self._created

    @property
    def complete(self) -> bool:
        """Whether every transcript has been read once: totals may be shown.

        It is not so during the very first scan, and while a replaced ledger is being caught up.
        """
        return self._complete and not self._catching_up

    @property
    def generation(self) -> int:
        """A number that grows whenever the totals change."""
        return self._memory.generation

    @property
    def overflow(self) -> dict[str, int]:
        """How many names each label's cap has sent to `other` since the start."""
        return self._names.overflow

    def size(self) -> int:
        """Return the bytes on disk, the write-ahead log included."""
        total = 0
        for name in (self.path, self.path.with_name(self.path.name + "-wal")):
            try:
                total += name.stat().st_size
            except FileNotFoundError:
                continue
        return total

    def cursors(self) -> list[FileCursor]:
        """Return the cursor of every known transcript."""
        rows = self._db.execute(
            "SELECT r.path, f.path, device, inode, size, mtime, offset, fingerprint, context"
            " FROM file f JOIN root r ON r.id = f.root"
        )
        return [
            FileCursor(os.fsdecode(root), os.fsdecode(path), *rest) for root, path, *rest in rows
        ]

    def scanned_roots(self) -> set[str]:
        """Return the roots that a complete scan has covered before."""
        rows = self._db.execute("SELECT path FROM root WHERE scanned IS NOT NULL")
        return {os.fsdecode(path) for (path,) in rows}

    def record(self, batch: Batch) -> list[Turn]:
        """Store a batch in one transaction and return the turns that were new.

        Raises LedgerUnavailableError when nothing was stored and the same batch can be tried again,
        and LedgerError when the file is damaged.
        """

        def work(counting: Counting) -> list[Turn]:
            new = counting.count(batch.turns, batch.calls, self._all_new)
            for root, path in batch.gone:
                key = (self._names.root(root), os.fsencode(path))
                self._db.execute("DELETE FROM file WHERE root = ? AND path = ?", key)
            self._db.executemany(
                "INSERT OR REPLACE INTO file VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [self._cursor_row(cursor) for cursor in batch.cursors.values()],
            )
            return new

        try:
            return self._transaction(work)
        except sqlite3.IntegrityError:
            self._all_new = False
            return self._transaction(work)

    def finish_scan(self, roots: list[str]) -> None:
        """Note that every transcript below these roots has been read; raises like `record`."""

        def work(_: Counting) -> None:
            for root in roots:
                self._db.execute(
                    "UPDATE root SET scanned = ? WHERE id = ? AND scanned IS NULL",
                    (self._clock(), self._names.root(root)),
                )
            self._set_meta("complete", 1)
            self._set_meta("catching_up", 0)

        self._transaction(work)
        self._complete, self._catching_up, self._all_new = True, False, False

    def copy_if_due(self) -> None:
        """Renew the copy beside the ledger if it is a day old and something has changed since.

        Raises LedgerUnavailableError if it cannot be written; it is tried again an hour later.
        """
        now = self._clock()
        if now < self._copy_due or self.generation == self._copied:
            return
        self._copy_due = now + _COPY_RETRY_MS
        make_copy(self._db, self.path, now)
        self._copy_due, self._copied = now + _COPY_MS, self.generation

    def snapshot(self) -> Snapshot:
        """Return the totals of this moment by label."""
        return self._memory.snapshot()

    def _load(self, show: ProjectLabel, replaced: bool) -> None:
        if self._meta("created") is None:
            self._create(show)
        if replaced:
            self._db.execute("BEGIN IMMEDIATE")
            self._set_meta("created", self._clock())
            self._set_meta("catching_up", 1)
            self._db.execute("COMMIT")
        self._complete = bool(self._meta("complete"))
        self._catching_up = bool(self._meta("catching_up"))
        # During a first scan nearly everything is new, so nothing is looked up until that is wrong.
        self._all_new = not self._complete
        self._created = int(self._meta("created"))
        copy = copy_of(self.path)
        made = copy.stat().st_mtime_ns // 10**6 if copy.exists() else None
        # A new ledger has all its transcripts: its first copy can wait until the scan is over.
        self._copy_due = made + _COPY_MS if made is not None else self._created + _COPY_RETRY_MS
        self._names = Names(self._db, show)
        self._memory = Memory(self._db, self._names.naming(), self._clock())
        if self._meta("labels") != show:
            self._transaction(lambda _: self._relabel(show))
        if self._meta("prices") != self._book.fingerprint:
            self._transaction(self._reprice)

    def _create(self, show: ProjectLabel) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._set_meta("id", str(uuid4()))
        self._set_meta("created", self._clock())
        self._set_meta("labels", show)
        self._set_meta("prices", self._book.fingerprint)
        self._db.execute("COMMIT")

    def _relabel(self, show: ProjectLabel) -> None:
        self._names.relabel(show)
        self._set_meta("labels", show)

    def _reprice(self, counting: Counting) -> None:
        counting.reprice(self._clock())
        self._set_meta("prices", self._book.fingerprint)

    def _transaction(self, work: Callable[[Counting], _Result]) -> _Result:
        """Run work inside one transaction; memory follows only after it has been committed."""
        counting = Counting(self._db, self._names, self._book)
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                result = work(counting)
                born = self._save(counting)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                self._names.reload()
                raise
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise translate(error, self.path) from None
        self._memory.absorb(counting, born, self._names.naming(), self._clock())
        return result

    def _save(self, counting: Counting) -> dict[SeriesKey, int]:
        """Write the transaction's sums; return the series whose birth is new or corrected."""
        db = self._db
        for name, table in counting.sums.tables():
            db.executemany(_UPSERTS[name], [(*key, *row) for key, row in table.items()])
        db.executemany(
            "UPDATE session SET last_turn = max(last_turn, ?) WHERE id = ?",
            [(time, session) for session, (_, time) in counting.active.items()],
        )
        db.executemany(
            "UPDATE project SET last_turn = max(last_turn, ?) WHERE id = ?",
            [(time, project) for project, time in counting.last_turns.items()],
        )
        for model, (day, rate) in counting.prices.items():
            if day >= self._memory.prices.get(model, (0, 0))[0]:
                db.execute("INSERT OR REPLACE INTO price VALUES (?, ?, ?)", (model, day, rate))
        known = self._memory.born
        # A start timestamp never changes once anybody may have seen it.
        born = {
            key: time
            for key, time in counting.born.items()
            if key not in known or (not self._complete and time < known[key])
        }
        db.executemany(
            "INSERT OR REPLACE INTO series VALUES (?, ?, ?, ?, ?)",
            [(*key, time) for key, time in born.items()],
        )
        return born

    def _cursor_row(self, cursor: FileCursor) -> tuple[object, ...]:
        return (
            self._names.root(cursor.root),
            os.fsencode(cursor.path),
            cursor.device,
            cursor.inode,
            cursor.size,
            cursor.mtime,
            cursor.offset,
            cursor.fingerprint,
            cursor.context,
        )

    def _meta(self, key: str) -> Any:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def _set_meta(self, key: str, value: object) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


def _upsert(table: str, keys: str, sums: str) -> str:
    columns = sums.split()
    marks = ", ".join("?" * (len(keys.split()) + len(columns)))
    moves = ", ".join(f"{column} = {column} + excluded.{column}" for column in columns)
    return f"INSERT INTO {table} VALUES ({marks}) ON CONFLICT DO UPDATE SET {moves}"


_UPSERTS: Final = {
    "usage_total": _upsert(
        "usage_total", "project model rate", "turns input cached output thoughts tool"
    ),
    "tool_total": _upsert("tool_total", "project model tool", "calls errors cancellations"),
    "prompt_total": _upsert("prompt_total", "model bucket", "turns"),
    "unpriced_total": _upsert("unpriced_total", "project model", "tokens"),
}
