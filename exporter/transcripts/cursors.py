"""How far each transcript has been read, held in little memory: a home may have very many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from ..ledger.model import FileCursor
from .reader import Key

PACKED_MAX: Final = 12 << 20
"""Bytes of packed cursors from which on no context is held: enough for 20,000 real transcripts."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, int, int, int, int, bytes, bytes]).decode


class Cursors:
    """The cursors of the transcripts below some roots, as the ledger has them.

    Beyond `limit` bytes a cursor is held without what the reader remembers of the file, which is
    then read from its start again when it changes.
    """

    def __init__(
        self, roots: Sequence[str], cursors: Iterable[FileCursor], limit: int = PACKED_MAX
    ) -> None:
        """Take those of the cursors that belong to one of the roots."""
        self._packed: dict[str, dict[str, bytes]] = {root: {} for root in roots}
        self._limit = limit
        self._size = 0
        for cursor in cursors:
            if cursor.root in self._packed:
                self.put(cursor)

    def add_root(self, root: str) -> None:
        """Take cursors of one more root from now on."""
        self._packed[root] = {}

    def __iter__(self) -> Iterator[Key]:
        return ((root, path) for root, packed in self._packed.items() for path in packed)

    def get(self, key: Key) -> FileCursor | None:
        """Return the cursor of a transcript, None if it is not known."""
        root, path = key
        packed = self._packed[root].get(path)
        return None if packed is None else FileCursor(root, path, *_decode(packed))

    def put(self, cursor: FileCursor) -> None:
        """Hold the cursor of a transcript in the place of an older one."""
        self.pop((cursor.root, cursor.path))
        place = (cursor.device, cursor.inode, cursor.size, cursor.mtime)
        packed = _encode((*place, cursor.offset, cursor.fingerprint, cursor.context))
        if self._size + len(packed) > self._limit:
            packed = _encode((*place, 0, b"", b""))
        self._size += len(packed)
        self._packed[cursor.root][cursor.path] = packed

    def pop(self, key: Key) -> None:
        """Forget the cursor of a transcript, if there is one."""
        root, path = key
        self._size -= len(self._packed[root].pop(path, b""))
