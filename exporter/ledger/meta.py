"""What the ledger notes about itself: a table of names and values."""

from __future__ import annotations

import sqlite3
from typing import Any


def get_meta(db: sqlite3.Connection, key: str) -> Any:
    """Return a text or a number, None if it is not noted."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return row[0] if row else None


def set_meta(db: sqlite3.Connection, **values: object) -> None:
    """Note these, each in the place of what was noted before."""
    db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", values.items())
