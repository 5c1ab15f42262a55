"""The ledger: every turn and tool call counted once, priced, and summed, in one SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import uuid4

from .budgets import Period, Span
from .counting import Counting
from .cursors import store_cursors, stored_cursors, stored_roots
from .labels import DEFAULT_RULES, LabelRules
from .lock import LedgerLock
from .memory import Memory
from .model import Batch, FileCursor, Turn
from .names import Names
from .pricing import PriceBook
from .recovery import copy_of, make_copy, open_ledger
from .schema import size_on_disk, translate, unusable
from .series import NEVER, Birth
from .spend import HOUR_MS
from .totals import SeriesName, Snapshot, Spending
from .writing import note_answer, write_sums

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
        rules: LabelRules = DEFAULT_RULES,
        address: str = "",
        hold: int = 90_000,
    ) -> None:
        """Open or create the ledger; a damaged one is replaced by its copy.

        `hold` is for how many milliseconds a series that is born live is shown to scrapers as 0; 0
        is never.

        Raises LedgerError if it is in use, too new or cannot be made, and LedgerUnavailableError if
        that may pass.
        """
        self.path = path
        self._book = book
        self._clock = clock
        self._names: Names
        self._memory: Memory
        self._hold = hold
        self._copy_due = 0
        self._scraped = 0
        """When a scraper asked for the first time; 0 is never."""
        self._answered = self._answer_stored = False
        self._catching_up_from = 0
        """End of the run before, until all that was written meanwhile has been read; else 0."""
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
                self._load(rules, replaced)
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
        return size_on_disk(self.path)

    def cursors(self) -> Iterator[FileCursor]:
        """Yield the cursor of every known transcript; to be used up before anything is recorded."""
        return stored_cursors(self._db)

    def scanned_roots(self) -> set[str]:
        """Return the roots that a complete scan has covered before."""
        return stored_roots(self._db)

    def record(self, batch: Batch) -> list[Turn]:
        """Store a batch in one transaction and return the turns that were new.

        Raises LedgerUnavailableError when nothing was stored and the same batch can be tried again,
        and LedgerError when the file is damaged.
        """

        def work(counting: Counting) -> list[Turn]:
            new = counting.count(batch.turns, batch.calls, self._all_new)
            store_cursors(self._db, self._names, batch)
            return new

        live_from = self._live_from(batch.history)
        try:
            return self._transaction(work, live_from)
        except sqlite3.IntegrityError:
            self._all_new = False
            return self._transaction(work, live_from)

    def finish_scan(self, roots: Iterable[str]) -> None:
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

    def starts(self) -> dict[SeriesName, int]:
        """Return the time of the first turn of each series; it never changes."""
        return self._memory.starts()

    def spending(self, spans: Mapping[Period, Span]) -> Spending:
        """Return what was spent in these periods and in the last hour, by event time."""
        return self._memory.spending(spans, self._clock())

    def asked(self) -> None:
        """Note that a scraper is asking: what is born from now on would be missed by it."""
        self._scraped = self._scraped or self._clock()

    def delivered(self, zeros: Container[SeriesName]) -> bool:
        """Note that a scraper has its answer, and which series were 0 in it.

        Returns whether `tend` is due earlier than before. Any thread may call this and `asked`.
        """
        first = not self._answered
        self._answered = True
        return self._memory.delivered(zeros, self._clock()) or first

    def tend(self) -> int | None:
        """Store what deliveries have changed; return when to come back, None if nobody waits.

        Series that have been shown as 0 for long enough are marked as shown here, before any answer
        holds their value. Raises like `record`; the time is in milliseconds since the epoch.
        """
        self._catching_up_from = 0
        births = self._memory.births
        due = births.due(self._clock(), self._hold)
        if due or (self._answered and not self._answer_stored):
            self._transaction(lambda _: note_answer(self._db, self._scraped), released=due)
            self._answer_stored = True
        return births.next_due(self._hold)

    def _load(self, rules: LabelRules, replaced: bool) -> None:
        if self._meta("created") is None:
            self._create(rules)
        self._names = Names(self._db, rules)
        if self._meta("labels") != rules.fingerprint:
            self._relabel(rules)
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
        self._scraped = int(self._meta("scraped") or 0)
        self._answered = self._answer_stored = bool(self._scraped)
        self._catching_up_from = int(self._meta("last_run") or 0)
        self._memory = Memory(self._db, self._names.naming(), self._clock())
        if self._meta("prices") != self._book.fingerprint:
            self._transaction(self._reprice)

    def _create(self, rules: LabelRules) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._set_meta("id", str(uuid4()))
        self._set_meta("created", self._clock())
        self._set_meta("labels", rules.fingerprint)
        self._set_meta("prices", self._book.fingerprint)
        self._db.execute("COMMIT")

    def _relabel(self, rules: LabelRules) -> None:
        """Let every series appear under its other labels at once: it is history, not spending."""
        self._db.execute("BEGIN IMMEDIATE")
        self._names.relabel()
        self._db.execute("UPDATE series SET shown = 1 WHERE project != 0")
        self._set_meta("labels", rules.fingerprint)
        self._db.execute("COMMIT")

    def _reprice(self, counting: Counting) -> None:
        counting.reprice(self._clock())
        self._set_meta("prices", self._book.fingerprint)

    def _live_from(self, history: bool) -> int:
        """Return the event time from which a turn is spending that scrapers must see happen.

        That is within the last hour, or since the run before while that is being caught up.
        """
        if history or not (self._complete and self._scraped and self._hold):
            return NEVER
        since = self._clock() - HOUR_MS
        if self._catching_up_from:
            since = min(since, self._catching_up_from - HOUR_MS)
        return max(since, self._created)

    def _transaction(
        self,
        work: Callable[[Counting], _Result],
        live_from: int = NEVER,
        released: Container[SeriesName] = (),
    ) -> _Result:
        """Run work inside one transaction; memory follows only after it has been committed."""
        now = self._clock()
        counting = Counting(self._db, self._names, self._book, now - HOUR_MS)
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                result = work(counting)
                births = self._save(counting, live_from, released)
                # While a run before is being caught up, its end stays the one that counts.
                self._set_meta("last_run", self._catching_up_from or now)
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
        self._memory.absorb(counting, births, self._names.naming(), now)
        return result

    def _save(
        self, counting: Counting, live_from: int, released: Container[SeriesName]
    ) -> list[Birth]:
        """Write the transaction's sums; return the series that are born, corrected or released."""
        naming = self._names.naming()
        write_sums(self._db, counting, self._memory.prices)
        known = self._memory.births
        births = known.plan(counting.born, naming, live_from, self._complete)
        births += known.releases(released, naming) if released else []
        self._db.executemany(
            "INSERT OR REPLACE INTO series VALUES (?, ?, ?, ?, ?, ?)",
            [(*key, born, shown) for key, born, shown in births],
        )
        return births

    def _meta(self, key: str) -> Any:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None

    def _set_meta(self, key: str, value: object) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
