"""Reading a ledger that another process may be writing, without ever changing it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from .errors import LedgerError
from .schema import VERSION

_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_FOLDER: Final = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY})
"""A folder without the files beside the ledger, in which they cannot be made either."""


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Return a connection that can read the ledger and make temporary tables, and nothing else.

    The writer is never kept waiting, but its write-ahead log grows for as long as one transaction
    here is open: keep them short. Temporary tables lie in a file that vanishes with the connection.
    Raises LedgerError, with the remedy, where there is no whole ledger of this release's schema.
    """
    if not path.exists():
        raise LedgerError(
            f"there is no ledger at {path}: run `gemini-cli-exporter once` to make it, or name"
            " another with --ledger.path"
        )
    try:
        return _checked(path, "mode=ro")
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _FOLDER:
            raise _unreadable(path, error) from None
    log = path.with_name(path.name + "-wal")
    try:
        if log.exists() and log.stat().st_size:
            raise LedgerError(
                f"the ledger {path} cannot be read in its folder, where nothing can be written, as"
                f" {log.name} is not empty: copy both files to another folder and name the copy"
                " with --ledger.path"
            )
        return _checked(path, "immutable=1")
    except (OSError, sqlite3.Error) as error:
        raise _unreadable(path, error) from None


def _checked(path: Path, mode: str) -> sqlite3.Connection:
    db = sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=10, isolation_level=None
    )
    try:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            raise LedgerError(
                f"the ledger {path} was written by a newer release (schema {version}, this one"
                f" knows {VERSION}): upgrade gemini-cli-exporter or name another with --ledger.path"
            )
        if not version:
            raise LedgerError(f"{path} is not a ledger: name another file with --ledger.path")
        if version < VERSION:
            raise LedgerError(
                f"the ledger {path} was written by an older release (schema {version}, this one"
                f" reads {VERSION}): run `gemini-cli-exporter once` to bring it up to date"
            )
        db.execute("PRAGMA temp_store = FILE")
        db.execute("PRAGMA temp.cache_size = -8192")
    except BaseException:
        db.close()
        raise
    return db


def _unreadable(path: Path, error: Exception) -> LedgerError:
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE:
        return LedgerError(
            f"the ledger {path} is damaged ({error}): run `gemini-cli-exporter once`, and its copy"
            " takes its place"
        )
    return LedgerError(
        f"the ledger {path} cannot be read: {error}; name another with --ledger.path"
    )
