"""The lines of a .jsonl transcript: split in a reused buffer, decoded only if they hold usage."""

from __future__ import annotations

import re
from collections import Counter
from io import FileIO
from typing import Final

from ..ledger.model import FileCursor
from .conversation import Conversation
from .records import head_of, is_crowded, parse_line, skippable
from .shapes import Reason

BUFFER: Final = 1 << 20
MAX_LINE: Final = 32 << 20
_MAX_DROPPED: Final = 1 << 30
"""Bytes of one line that are passed over without a pause."""

_ROWS: Final = 20_000
"""Turns and tool calls after which a read ends early, as it does at its budget."""

_BLANK: Final = re.compile(rb"(?:[ \t\r]?\n)++")


class Lines:
    """The lines of a .jsonl file from the cursor's offset on; the cursor moves line by line."""

    def __init__(
        self,
        file: FileIO,
        cursor: FileCursor,
        talk: Conversation,
        reasons: Counter[str],
        buffer: bytearray,
        max_line: int,
    ) -> None:
        self.count = 0
        """Bytes read so far."""
        self._file = file
        self._cursor = cursor
        self._talk = talk
        self._reasons = reasons
        self._buffer = buffer
        self._max_line = max_line
        self._filled = 0
        self._ahead = 0
        """Bytes of the current line that were dropped in front of the buffer."""
        self._head: str | None = None
        """Message type of the current line while it is dropped because it needs no decoding."""

    def read(self, budget: int) -> int:
        """Read to the last newline or past the budget; return the bytes left because of it."""
        cursor = self._cursor
        start = cursor.offset
        self._file.seek(start)
        while (self.count < budget and self._talk.rows < _ROWS) or cursor.offset == start:
            count = self._file.readinto(memoryview(self._buffer)[self._filled :])
            if not count:
                return 0
            self.count += count
            self._split(self._filled, self._filled + count)
        return max(0, cursor.size - cursor.offset)

    def _split(self, searched: int, end: int) -> None:
        """Take the complete lines of the buffer and move the rest to its front."""
        buffer, talk = self._buffer, self._talk
        begin, newline = 0, buffer.find(b"\n", searched, end)
        with memoryview(buffer) as view:
            while newline >= 0:
                if self._ahead:
                    self._finish_dropped(view, begin, newline)
                elif newline - begin <= 1 and (blank := _BLANK.match(buffer, begin, end)):
                    newline = blank.end() - 1  # any number of blank lines at once
                else:
                    kind = skippable(buffer, begin, newline)
                    if kind is None:
                        self._take(view, begin, newline)
                    elif kind == "user":
                        talk.user()
                begin = newline + 1
                newline = buffer.find(b"\n", begin, end)
            self._cursor.offset += begin
            rest = end - begin
            if begin:
                view[:rest] = view[begin:end]
        self._filled = rest
        if self._ahead:
            self._ahead += rest
            self._filled = 0
            if self._ahead > _MAX_DROPPED:
                # What follows is taken for another line, so that others have their turn.
                self._reasons[Reason.LINE_TOO_LONG] += 1
                self._cursor.offset += self._ahead
                self._ahead = 0
        elif rest == len(buffer):
            self._make_room()

    def _take(self, view: memoryview, begin: int, end: int) -> None:
        crowded = is_crowded(self._buffer, begin, end)
        parsed = parse_line(view[begin:end], crowded)
        if parsed.record is not None:
            self._talk.message(parsed.record)
        elif parsed.header is not None:
            self._talk.header(parsed.header)
        if parsed.reasons:
            self._reasons.update(parsed.reasons)

    def _make_room(self) -> None:
        """The buffer is full of one unfinished line: drop what needs no decoding, else grow."""
        size = len(self._buffer)
        self._head = head_of(self._buffer, 0, size)
        if self._head is not None or size >= self._max_line:
            self._ahead = size
            self._filled = 0
            return
        larger = bytearray(min(2 * size, self._max_line))
        larger[:size] = self._buffer
        self._buffer = larger

    def _finish_dropped(self, view: memoryview, begin: int, end: int) -> None:
        """Close a line that was dropped, of which the buffer holds the end."""
        if self._head == "user":
            self._talk.user()
        elif self._head is None:
            self._reasons[Reason.LINE_TOO_LONG] += 1
        if self._head is not None and self._buffer.find(b'"type":"gemini"', begin, end) >= 0:
            self._take(view, begin, end)  # a reply that is glued to half a line
        self._cursor.offset += self._ahead
        self._ahead = 0
