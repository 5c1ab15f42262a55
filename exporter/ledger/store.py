"""The ledger: every turn and tool call counted once, priced, and summed, in one SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Set
from concurrent.futures import Future
from pathlib import Path
from typing import Final, TypeVar
from uuid import uuid4

from .audience import EVERYBODY, NEVER, Attendance, Audience
from .budgets import Period, Span
from .counting import HOUR_MS, Counting
from .cursors import store_cursors, stored_cursors, stored_roots
from .deferred import Deferred, Work
from .labels import DEFAULT_RULES, LabelRules
from .lock import LedgerLock
from .memory import Memory
from .meta import get_meta, set_meta
from .model import Batch, FileCursor, Turn
from .names import Names
from .pricing import PriceBook
from .pushed import Pushed
from .recovery import Copying, open_ledger
from .schema import size_on_disk, translate
from .series import Birth
from .totals import SeriesName, Snapshot, Spending
from .writing import note_answer, stored_answers, write_sums

_HISTORY: Final = dict.fromkeys(Audience, NEVER)
_NOTHING: Final[Mapping[Audience, Set[SeriesName]]] = {}

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
        is never. A receiver of OTLP is shown it once.

        Raises LedgerError if it is in use, too new or cannot be made, and LedgerUnavailableError if
        that may pass.
        """
        self.path = path
        self._book = book
        self._clock = clock
        self._names: Names
        self._memory: Memory
        self._holds = {Audience.SCRAPERS: hold, Audience.RECEIVER: 0}
        self._attendance: Attendance
        self._deferred = Deferred()
        self._catching_up_from = 0
        """End of the run before, until all that was written meanwhile has been read; else 0."""
        self._lock = LedgerLock(path, address)
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
    def id(self) -> str:
        """What no other ledger is called."""
        return self._id

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
            set_meta(self._db, complete=1, catching_up=0)

        self._transaction(work)
        self._complete, self._catching_up, self._all_new = True, False, False

    def copy_if_due(self) -> None:
        """Renew the copy beside the ledger if it is a day old and something has changed since.

        Raises LedgerUnavailableError if it cannot be written; it is tried again an hour later.
        """
        self._copying.renew(self._db, self.generation, self._clock())

    def snapshot(self) -> Snapshot:
        """Return the totals of this moment by label."""
        return self._memory.snapshot()

    def starts(self) -> dict[SeriesName, int]:
        """Return the time of the first turn of each series; it never changes."""
        return self._memory.starts()

    def spending(self, spans: Mapping[Period, Span]) -> Spending:
        """Return what was spent in these periods and in the last hour, by event time."""
        return self._memory.spending(spans, self._clock())

    def asked(self, audience: Audience) -> None:
        """Note that somebody is asking: what is born from now on would be missed by them."""
        self._attendance.ask(audience, self._clock())

    def delivered(self, audience: Audience, zeros: Container[SeriesName]) -> bool:
        """Note that somebody who asked has the answer, and which series were 0 in it.

        Returns whether `tend` is due earlier than before. Any thread may call this and `asked`.
        """
        first = self._attendance.answer(audience)
        return self._memory.delivered(audience, zeros, self._clock()) or first

    def defer(self, work: Work) -> Future[None]:
        """Have work done by `tend`, which is due at once; any thread may call this."""
        return self._deferred.add(work)

    def pushed(self) -> Pushed:
        """Return what a receiver of differences has; to be asked for before all recording."""
        return Pushed(self._db, self.defer)

    def tend(self) -> int | None:
        """Store what deliveries have changed; return when to come back, None if nobody waits.

        Series that have been shown as 0 for long enough are marked as shown here, before any answer
        holds their value. Raises like `record`; the time is in milliseconds.
        """
        self._catching_up_from = 0
        births = self._memory.births
        due = births.due(self._clock(), self._holds)
        answers = self._attendance.unstored()

        def work(_: Counting) -> None:
            for audience, time in answers.items():
                note_answer(self._db, audience, time)
            self._deferred.do(self._db)

        if any(due.values()) or answers or self._deferred:
            self._transaction(work, released=due)
            self._attendance.stored(answers)
            self._deferred.done()
        return births.next_due(self._holds)

    def _load(self, rules: LabelRules, replaced: bool) -> None:
        if get_meta(self._db, "created") is None:
            self._create(rules)
        self._names = Names(self._db, rules)
        if get_meta(self._db, "labels") != rules.fingerprint:
            self._relabel(rules)
        if replaced:
            self._db.execute("BEGIN IMMEDIATE")
            set_meta(self._db, created=self._clock(), catching_up=1)
            self._db.execute("COMMIT")
        self._complete = bool(get_meta(self._db, "complete"))
        self._catching_up = bool(get_meta(self._db, "catching_up"))
        # During a first scan nearly everything is new, so nothing is looked up until that is wrong.
        self._all_new = not self._complete
        self._id: str = get_meta(self._db, "id")
        self._created: int = get_meta(self._db, "created")
        self._copying = Copying(self.path, self._created)
        unheld = set() if self._holds[Audience.SCRAPERS] else {Audience.SCRAPERS}
        self._attendance = Attendance(stored_answers(self._db), unheld)
        self._catching_up_from = get_meta(self._db, "last_run") or 0
        self._memory = Memory(self._db, self._names.naming(), self._clock())
        if get_meta(self._db, "prices") != self._book.fingerprint:
            self._transaction(self._reprice)

    def _create(self, rules: LabelRules) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        made = {"labels": rules.fingerprint, "prices": self._book.fingerprint}
        set_meta(self._db, id=str(uuid4()), created=self._clock(), **made)
        self._db.execute("COMMIT")

    def _relabel(self, rules: LabelRules) -> None:
        """Let every series appear under its other labels at once: it is history, not spending."""
        self._db.execute("BEGIN IMMEDIATE")
        self._names.relabel()
        self._db.execute("UPDATE series SET shown = ? WHERE project != 0", (EVERYBODY,))
        set_meta(self._db, labels=rules.fingerprint)
        self._db.execute("COMMIT")

    def _reprice(self, counting: Counting) -> None:
        counting.reprice(self._clock())
        set_meta(self._db, prices=self._book.fingerprint)

    def _live_from(self, history: bool) -> Mapping[Audience, int]:
        """Return the event time from which a turn is spending that an audience must see happen.

        That is within the last hour, or since the run before while that is being caught up.
        """
        if history or not self._complete:
            return _HISTORY
        since = self._clock() - HOUR_MS
        if self._catching_up_from:
            since = min(since, self._catching_up_from - HOUR_MS)
        return self._attendance.live_from(max(since, self._created))

    def _transaction(
        self,
        work: Callable[[Counting], _Result],
        live_from: Mapping[Audience, int] = _HISTORY,
        released: Mapping[Audience, Set[SeriesName]] = _NOTHING,
    ) -> _Result:
        """Run work inside one transaction; memory follows only after it has been committed."""
        now = self._clock()
        counting = Counting(self._db, self._names, self._book, now)
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                result = work(counting)
                births = self._save(counting, live_from, released)
                # While a run before is being caught up, its end stays the one that counts.
                set_meta(self._db, last_run=self._catching_up_from or now)
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
        self,
        counting: Counting,
        live_from: Mapping[Audience, int],
        released: Mapping[Audience, Set[SeriesName]],
    ) -> list[Birth]:
        """Write the transaction's sums; return the series that are born, corrected or released."""
        naming = self._names.naming()
        write_sums(self._db, counting, self._memory.prices)
        known = self._memory.births
        births = known.plan(counting.born, naming, live_from, self._complete)
        births += known.releases(released, naming)
        self._db.executemany(
            "INSERT OR REPLACE INTO series VALUES (?, ?, ?, ?, ?, ?)",
            [(*key, born, shown) for key, born, shown in births],
        )
        return births
