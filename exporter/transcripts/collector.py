"""Changed transcript -> reader -> one ledger transaction: the loop that keeps a ledger current.

The look at all folders is the truth; file events only make it early.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Final

from ..ledger.model import Batch
from ..ledger.stats import Stats
from ..ledger.store import Ledger
from .assistant import Assistant, Task
from .inventory import Inventory
from .layout import is_hash
from .reader import Key, Reader, Reading, Source
from .recording import Recording

if TYPE_CHECKING:
    from .watcher import Watcher

logger = logging.getLogger(__name__)

BATCH_ROWS: Final = 10_000
"""Turns, tool calls and cursors of one transaction, roughly."""

_LARGE_BATCH: Final = 3 * BATCH_ROWS
"""Turns and tool calls from which on a batch is committed in parts."""

ASSIST_FROM: Final = 200 << 20
"""Bytes to read from which on a second process pays."""

POLL_SECONDS: Final = 5.0
LIVE_LOOK_SECONDS: Final = 1.0
_SCAN_SHARE: Final = 300

_Queue = deque[Source]
"""What is to be read, in this order."""

Progress = Callable[[int, int], None]
"""Called with the bytes that are done and the bytes there are in all."""


class Collector:
    """Reads what is new in the transcripts of all roots into the ledger; one thread runs it.

    `clock` returns milliseconds since the epoch. `stop` ends the loop, and the wait for a ledger
    that cannot be written; without it nothing is waited for. Roots that are `polled` are not
    watched for events. Ledger errors that waiting cannot mend are raised.
    """

    def __init__(
        self,
        roots: Sequence[str],
        ledger: Ledger,
        stats: Stats,
        clock: Callable[[], int],
        *,
        reader: Reader | None = None,
        stop: threading.Event | None = None,
        progress: Progress | None = None,
        polled: Container[str] = (),
        assist_from: int = ASSIST_FROM,
    ) -> None:
        self._ledger = ledger
        self._stats = stats
        self._clock = clock
        self._reader = reader or Reader()
        self._stop = stop
        self._progress = progress
        self._polled = polled
        self._assist_from = assist_from
        self._recording = Recording(ledger, stats, clock, stop)
        self._inventory = Inventory(roots, ledger.cursors(), ledger.scanned_roots(), stats)
        self._missing: set[str] = set()
        self._watched: set[str] = set()
        self._batch = Batch()
        self._scan_cost = 0.0

    def scan(self, watcher: Watcher | None = None) -> None:
        """Look at every folder, read all that is new, and commit it."""
        started = monotonic()
        inventory = self._inventory
        inventory.find_folders()
        if watcher is not None:
            self._watch_folders(watcher)
        roots = inventory.present_roots()
        self._tell_missing(inventory.missing_roots())
        queues = self._queues(inventory.changed(self._now()))
        self._scan_cost = monotonic() - started
        self._read_all(*queues)
        if self._stopped():
            return
        if not self._ledger.complete or any(map(inventory.is_first_scan, roots)):
            self._recording.finish_scan(roots)
            inventory.mark_scanned(roots)
        self._stats.scans += 1
        self._stats.last_scan = self._now()
        self._recording.copy_if_due()

    def _watch_folders(self, watcher: Watcher) -> None:
        """Watch all folders, and look again while there are new ones.

        What is made before its folder is watched has no event, so it must be listed afterwards.
        """
        while True:
            kinds = self._inventory.kinds(self._polled)
            watcher.sync(kinds)
            if kinds.keys() <= self._watched:
                break
            self._watched = set(kinds)
            self._inventory.find_folders()

    def look(self, paths: Iterable[str]) -> None:
        """Read what is new in these files only."""
        self._read_all(*self._queues(self._inventory.changed_among(paths, self._now())))

    def close(self) -> None:
        """Close the transcripts that are kept open."""
        self._reader.keep_only(())

    def run(self, watcher: Watcher, wake: threading.Event, rescan_seconds: float) -> None:
        """Scan, then follow events and the clock until stopped; `stop` must set `wake` too.

        `rescan_seconds` is the longest time between two full looks while events work.
        """
        self.scan(watcher)
        scanned = looked = monotonic()
        while not self._stopped():
            tend_in = self._recording.tend()
            events = watcher.mode == "events" and not (
                watcher.unwatched or self._polled or self._inventory.crowded
            )
            interval = rescan_seconds if events else min(POLL_SECONDS, rescan_seconds)
            due = scanned + max(interval, _SCAN_SHARE * self._scan_cost)
            live = self._inventory.live(self._now())
            self._reader.keep_only(live)
            rest = max(0.0, due - monotonic())
            rest_live = max(0.0, looked + LIVE_LOOK_SECONDS - monotonic())
            wake.wait(min(rest, tend_in, rest_live if live else rest))
            wake.clear()
            changes = watcher.take()
            self._stats.watcher_mode = watcher.mode
            self._stats.watcher_restarts = watcher.restarts
            if self._stopped():
                break
            now = monotonic()
            if changes.everything or changes.folders or now >= due:
                self.scan(watcher)
                scanned = looked = monotonic()
                continue
            paths = set(changes.files)
            if now - looked >= LIVE_LOOK_SECONDS:
                paths.update(os.path.join(*key) for key in live)
                looked = now
            self.look(paths)

    def _now(self) -> float:
        return self._clock() / 1000

    def _stopped(self) -> bool:
        return self._stop is not None and self._stop.is_set()

    def _tell_missing(self, missing: set[str]) -> None:
        for root in sorted(missing - self._missing):
            logger.info(
                "waiting for a folder that does not exist yet",
                extra={
                    "fields": {"root": root, "remedy": "start Gemini CLI, or --transcripts.root"}
                },
            )
        for root in sorted(self._missing - missing):
            logger.info("the folder is there now", extra={"fields": {"root": root}})
        self._missing = missing

    def _queues(self, sources: Iterable[Source]) -> tuple[_Queue, _Queue]:
        """Return what is to be read: of roots that were read completely before, and of others."""
        known: _Queue = deque()
        new: _Queue = deque()
        for source in sources:
            first = self._inventory.is_first_scan(source.root)
            (new if first else known).append(source)
        return known, new

    def _read_all(self, known: _Queue, new: _Queue) -> None:
        """Read files in turn, each up to the reader's budget, so that none starves the others.

        What comes from roots that are new goes into transactions of its own: it is history.
        """
        total = sum(map(_unread, known)) + sum(map(_unread, new))
        self._stats.pending_bytes = total
        for history, queue in ((False, known), (True, new)):
            self._batch.history = history
            self._read_queue(queue, total)

    def _read_queue(self, queue: _Queue, total: int) -> None:
        stats = self._stats
        with self._assistance(sum(map(_unread, queue))) as assistant:
            while (queue or (assistant and assistant.busy)) and not self._stopped():
                read = self._take_answer(assistant, queue) if assistant else None
                stats.pending_bytes -= self._read_next(queue) if read is None else read
                if len(self._batch) >= BATCH_ROWS:
                    self._commit()
                if self._progress is not None:
                    self._progress(total - stats.pending_bytes, total)
        self._commit()

    @contextmanager
    def _assistance(self, pending: int) -> Iterator[Assistant | None]:
        """Start a second process if there is enough to read for two."""
        if pending < self._assist_from or (os.cpu_count() or 1) < 2:
            yield None
            return
        try:
            assistant = Assistant()
        except OSError as error:
            logger.warning("reading alone", extra={"fields": {"error": str(error)}})
            yield None
            return
        with closing(assistant):
            yield assistant

    def _take_answer(self, assistant: Assistant, queue: _Queue) -> int | None:
        """Keep the assistant busy and take what it has read; return how many bytes that were.

        None says that there is something to be read by ourselves first.
        """
        while queue and assistant.free and not _is_late(queue[0]):
            source = queue.popleft()
            if not assistant.give(self._task(source)):
                queue.appendleft(source)
                break
        ours = bool(queue) and not (_is_late(queue[0]) and assistant.busy)
        answer = assistant.answer(wait=not ours)
        if answer is not None:
            self._batch.turns += answer.turns
            self._batch.calls += answer.calls
            self._stats.skipped.update(answer.reasons)
            if answer.error is not None:
                self._inventory.refuse(answer.key, OSError(*answer.error), self._now())
            elif answer.reading is not None:
                self._take(answer.key, answer.reading)
                return answer.reading.bytes
            return 0
        if not ours:
            queue.extend(assistant.unanswered())
            return 0
        return None

    def _read_next(self, queue: _Queue) -> int:
        """Read the first file of the queue and return how many bytes were new."""
        source = queue.popleft()
        unread = _unread(source)
        key = source.key
        task = self._task(source)
        try:
            reading = self._reader.read(
                source, task.place, task.now, task.first_scan, self._batch, self._stats.skipped
            )
        except OSError as error:
            self._inventory.refuse(key, error, self._now())
            return unread
        self._take(key, reading)
        if reading.cursor is not None and reading.pending:
            queue.append(source._replace(size=reading.cursor.size, known=reading.cursor))
            return unread - reading.pending
        return unread

    def _task(self, source: Source) -> Task:
        # Slug folders come first, and what they tell may name a hash folder that comes later.
        place = self._inventory.place(source.key)
        first = self._inventory.is_first_scan(source.root)
        return Task(source, place, self._clock(), first)

    def _take(self, key: Key, reading: Reading) -> None:
        self._stats.read_bytes += reading.bytes
        if reading.cursor is None:
            self._batch.cursors.pop(key, None)
            self._inventory.drop(key)
        else:
            self._batch.cursors[key] = reading.cursor
            self._inventory.learn(key, reading.project_hash)

    def _commit(self) -> None:
        """Put the batch into the ledger; only then do the cursors move."""
        batch, inventory = self._batch, self._inventory
        batch.gone += inventory.gone
        inventory.gone = []
        # One document may fill a batch by itself; cut short between parts, it is read again.
        while len(batch.turns) + len(batch.calls) > _LARGE_BATCH:
            turns, calls = batch.turns[:BATCH_ROWS], batch.calls[:BATCH_ROWS]
            self._recording.record(Batch(turns, calls, history=batch.history))
            del batch.turns[:BATCH_ROWS], batch.calls[:BATCH_ROWS]
        if not len(batch):
            return
        self._recording.record(batch)
        for cursor in batch.cursors.values():
            inventory.settle(cursor)
        self._batch = Batch(history=batch.history)


def _unread(source: Source) -> int:
    """Return the bytes that are new in a file, all of them if it is another file than before."""
    offset = 0 if source.known is None else source.known.offset
    return max(0, source.size - offset) or source.size


def _is_late(source: Source) -> bool:
    """Tell whether a transcript waits for the names that others carry: it is in a hash folder."""
    return is_hash(source.below.split(os.sep)[1])
