"""How far each transcript has been read, as the ledger stores it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator

from .model import Batch, FileCursor
from .names import Names


def stored_cursors(db: sqlite3.Connection) -> Iterator[FileCursor]:
    """Yield the cursor of every known transcript."""
    rows = db.execute(
        "SELECT r.path, f.path, device, inode, size, mtime, offset, fingerprint, context"
        " FROM file f JOIN root r ON r.id = f.root"
    )
    for root, path, *rest in rows:
        yield FileCursor(os.fsdecode(root), os.fsdecode(path), *rest)


def stored_roots(db: sqlite3.Connection) -> set[str]:
    """Return the roots that a complete scan has covered before."""
    rows = db.execute("SELECT path FROM root WHERE scanned IS NOT NULL")
    return {os.fsdecode(path) for (path,) in rows}


def store_cursors(db: sqlite3.Connection, names: Names, batch: Batch) -> None:
    """Write a batch's cursors inside the caller's transaction, and drop those that are gone."""
    db.executemany(
        "DELETE FROM file WHERE root = ? AND path = ?",
        [(names.root(root), os.fsencode(path)) for root, path in batch.gone],
    )
    db.executemany(
        "INSERT OR REPLACE INTO file VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                names.root(cursor.root),
                os.fsencode(cursor.path),
                cursor.device,
                cursor.inode,
                cursor.size,
                cursor.mtime,
                cursor.offset,
                cursor.fingerprint,
                cursor.context,
            )
            for cursor in batch.cursors.values()
        ],
    )
