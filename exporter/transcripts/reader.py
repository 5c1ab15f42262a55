"""One transcript file: read on from a cursor, in both formats."""

from __future__ import annotations

import gc
import os
from collections import Counter, OrderedDict
from collections.abc import Container
from hashlib import blake2b
from io import FileIO
from typing import Final, NamedTuple

import msgspec

from ..ledger.model import Batch, FileCursor
from .conversation import Conversation, Given, Memory, Moment, Place
from .files import identity, modified, open_regular
from .layout import is_document
from .lines import BUFFER, MAX_LINE, Lines
from .records import is_crowded, parse_document
from .shapes import Reason

MAX_DOCUMENT: Final = 64 << 20
BUDGET: Final = 4 << 20
"""Bytes of one .jsonl file that are read before the other files have their turn."""

MAX_OPEN: Final = 64
"""Transcripts that are kept open after they have been read."""

LOOK_AGAIN: Final = -1
"""A modification time that no file has: the file is opened once more, changed or not."""

_GC_ALLOCATIONS: Final = 100_000

_EDGE: Final = 256
_RACY_NS: Final = 50_000_000
_SETTLED_NS: Final = 5_000_000_000

Key = tuple[str, str]
"""Root and path below it: the identity of a transcript's cursor."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Memory).decode


class Source(NamedTuple):
    """A transcript to read. Very many may be waiting, so that nothing is held that can be made."""

    root: str
    below: str
    """Its path below the root."""
    size: int
    """Bytes, as listed."""
    known: FileCursor | None = None
    """How far it was read; None if it never was."""

    @property
    def key(self) -> Key:
        """Whose cursor it is."""
        return self.root, self.below

    @property
    def path(self) -> str:
        """Where to open it."""
        return os.path.join(self.root, self.below)

    @property
    def cursor(self) -> FileCursor:
        """Where to go on."""
        return self.known or FileCursor(self.root, self.below)


class Reading(NamedTuple):
    """What one read of one file gave, apart from the turns and calls in the batch."""

    cursor: FileCursor | None
    """Where to go on; None if the file is gone."""
    bytes: int
    pending: int
    """Bytes that are left for the next read because of the budget; an unfinished line is not."""
    project_hash: str


class Reader:
    """Reads transcripts one after the other through one reused buffer; not thread-safe.

    The files that were read last stay open: what was written to one before it was deleted or
    replaced can still be read then.
    """

    def __init__(
        self,
        *,
        buffer: int = BUFFER,
        max_line: int = MAX_LINE,
        budget: int = BUDGET,
        max_open: int = MAX_OPEN,
    ) -> None:
        self._buffer = bytearray(buffer)
        self._max_line = max_line
        self._budget = budget
        self._max_open = max_open
        self._open: OrderedDict[Key, _Kept] = OrderedDict()

    def read(
        self,
        source: Source,
        place: Place,
        now: int,
        first_scan: bool,
        batch: Batch,
        reasons: Counter[str],
    ) -> Reading:
        """Read what is new in a file and add its turns and calls to the batch.

        `now` is the time in milliseconds since the epoch. On a first scan a record without a time
        of its own takes the file's. Raises OSError if the file cannot be opened or read; the batch
        may then hold turns that the ledger will see again.
        """
        old, key, path = source.cursor, source.key, source.path
        context = _Context(place, now, first_scan, batch, reasons)
        count = 0
        kept = self._open.pop(key, None)
        if kept is not None and not kept.is_at(path):
            with kept.file:
                while True:
                    drained = self._read_open(kept, old, context)
                    count, old = count + drained.bytes, drained.cursor or old
                    if not drained.pending:
                        break
            kept = None
        if kept is None:
            try:
                kept = _Kept(FileIO(open_regular(path)[0]))
            except FileNotFoundError:
                if not count:
                    raise
                return Reading(None, count, 0, "")
        try:
            reading = self._read_open(kept, old, context)
        except BaseException:
            kept.file.close()
            raise
        self._open[key] = kept
        if len(self._open) > self._max_open:
            self._open.popitem(last=False)[1].file.close()
        return reading._replace(bytes=count + reading.bytes)

    def keep_only(self, keys: Container[Key]) -> None:
        """Close the files that are not among these."""
        for key in [key for key in self._open if key not in keys]:
            self._open.pop(key).file.close()

    def _read_open(self, kept: _Kept, old: FileCursor, context: _Context) -> Reading:
        file, reasons = kept.file, context.reasons
        status = os.fstat(file.fileno())
        memory = _decode(old.context) if old.context else Memory()
        offset = old.offset
        if not _is_same(file, status, old):
            # Same path, other content: most likely the same session, so its model still holds.
            offset, memory.last, memory.before = 0, None, None
        new = FileCursor(
            old.root, old.path, *identity(status), status.st_size, modified(status), offset
        )
        moment = Moment(context.now, context.now)
        if context.first_scan:
            moment = Moment(context.now, moment.plausible(status.st_mtime_ns // 1_000_000))
        kept.resumed = offset > 0 if kept.resumed is None else kept.resumed and offset > 0
        talk = Conversation(
            context.place, memory, kept.given, moment, context.batch, reasons, kept.resumed
        )
        pending = 0
        if is_document(old.path):
            count = _read_document(kept, new, talk, context.now, reasons)
        else:
            lines = Lines(file, new, talk, reasons, self._buffer, self._max_line)
            pending = lines.read(self._budget)
            count = lines.count
            new.fingerprint = _fingerprint(file, new.offset)
            if pending:
                new.mtime = LOOK_AGAIN
        new.context = _encode(memory)
        return Reading(new, count, pending, memory.project_hash)


class _Context(NamedTuple):
    """What is the same for all that one call reads."""

    place: Place
    now: int
    first_scan: bool
    batch: Batch
    reasons: Counter[str]


class _Kept:
    """An open transcript, and what has been given out of it so far."""

    def __init__(self, file: FileIO) -> None:
        self.file = file
        self.given: Given = {}
        self.reasons = Counter[str]()
        self.resumed: bool | None = None
        """Whether a part of it was read before it was opened this time."""

    def is_at(self, path: str) -> bool:
        """Tell whether the path still leads to this file."""
        try:
            return identity(os.lstat(path)) == identity(os.fstat(self.file.fileno()))
        except FileNotFoundError:
            return False
        except OSError:
            return True  # it cannot be told, and this one can be read


def _read_document(
    kept: _Kept, cursor: FileCursor, talk: Conversation, now: int, reasons: Counter[str]
) -> int:
    """Read a .json transcript and return its size; it may be cut off while it is rewritten."""
    if cursor.size > MAX_DOCUMENT:
        reasons[Reason.LINE_TOO_LONG] += 1
        return 0
    kept.file.seek(0)
    data = bytearray(cursor.size)
    size = kept.file.readinto(data) or 0
    del data[size:]
    age = now * 1_000_000 - cursor.mtime
    if size != cursor.size or abs(age) < _RACY_NS:
        # It may change once more without another size or time, so it must be looked at again.
        cursor.mtime = LOOK_AGAIN
    if not data:
        return 0
    parsed = parse_document(data, is_crowded(data, 0, size))
    del data
    if parsed.header is not None:
        talk.document(parsed.header)
    elif abs(age) < _SETTLED_NS:
        cursor.mtime = LOOK_AGAIN
        return size
    # What was counted before is still there: the document is the same but for its end.
    found = Counter[str](parsed.reasons)
    reasons.update(found - kept.reasons)
    kept.reasons |= found
    return size


def _is_same(file: FileIO, status: os.stat_result, cursor: FileCursor) -> bool:
    """Tell whether the file still is what the cursor was made for, up to the cursor's offset."""
    return (
        identity(status) == (cursor.device, cursor.inode)
        and status.st_size >= cursor.offset
        and (not cursor.offset or _fingerprint(file, cursor.offset) == cursor.fingerprint)
    )


def _fingerprint(file: FileIO, offset: int) -> bytes:
    """Return a digest of the first bytes of a file and of the last ones before the offset."""
    size = min(_EDGE, offset)
    file.seek(0)
    head = file.read(size)
    file.seek(offset - size)
    return blake2b(head + file.read(size), digest_size=8).digest()


def spare_the_collector() -> None:
    """Let Python's garbage collector run more rarely in a process that reads transcripts.

    What is read is freed by its reference counts; looking for cycles in it cost 5 % of a scan.
    """
    gc.set_threshold(_GC_ALLOCATIONS)


def project_hash_of(cursor: FileCursor) -> str:
    """Return the `projectHash` that a transcript carries, as far as it was read before."""
    return _decode(cursor.context).project_hash if cursor.context else ""
