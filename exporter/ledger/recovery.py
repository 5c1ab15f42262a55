"""The daily copy of the ledger, and what takes the place of a damaged one."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from .errors import DamagedLedgerError, LedgerUnavailableError
from .schema import connect, translate

logger = logging.getLogger(__name__)

_COPY_MS: Final = 86_400_000
_COPY_RETRY_MS: Final = 3_600_000
_COMPANIONS: Final = ("", "-wal", "-shm")


def copy_of(path: Path) -> Path:
    """Return where the copy of a ledger lies: beside it."""
    return path.with_name(path.name + ".copy")


def open_ledger(path: Path, now: int) -> tuple[sqlite3.Connection, bool]:
    """Open the ledger, or put its copy or an empty one in the place of a damaged one.

    Returns the connection and whether the ledger was replaced. `now` is in milliseconds since the
    epoch and names the damaged file that is moved aside. Only damage is replaced: a full disk, a
    busy file or a newer schema raises as `connect` does.
    """
    restored = _restored(path)
    if restored.exists() and not path.exists():
        restored.replace(path)  # a former start was killed just before this
        return connect(path), True
    try:
        if copy_of(path).exists() and path.exists() and not path.stat().st_size:
            raise DamagedLedgerError(f"the ledger {path} is empty")
        return connect(path), False
    except DamagedLedgerError as error:
        whole = _copy_is_whole(path)
        aside = _move_aside(path, now)
        source = "a new ledger: the transcripts that still exist are counted again"
        if whole:
            restored.replace(path)
            source = "its copy, caught up from the transcripts"
        fields = {"error": str(error), "kept_as": str(aside), "replaced_by": source}
        logger.error("the ledger was replaced", extra={"fields": fields})
        return connect(path), True


class Copying:
    """Renews the copy beside the ledger once a day. Times are milliseconds since the epoch."""

    def __init__(self, path: Path, created: int) -> None:
        """`created` is when the ledger was made."""
        self._path = path
        self._copied = -1
        """Generation of the last copy; -1 is one from before the start."""
        copy = copy_of(path)
        made = copy.stat().st_mtime_ns // 10**6 if copy.exists() else None
        # A new ledger has all its transcripts: its first copy can wait until the scan is over.
        self._due = made + _COPY_MS if made is not None else created + _COPY_RETRY_MS

    def renew(self, db: sqlite3.Connection, generation: int, now: int) -> None:
        """Make a copy if the last is a day old and of another generation; raises as `make_copy`.

        What failed is tried again an hour later.
        """
        if now < self._due or generation == self._copied:
            return
        self._due = now + _COPY_RETRY_MS
        make_copy(db, self._path, now)
        self._due, self._copied = now + _COPY_MS, generation


def make_copy(db: sqlite3.Connection, path: Path, now: int) -> None:
    """Write a verified copy of the ledger beside it, in the place of the one before.

    Raises LedgerUnavailableError if it cannot be written; the former copy is then still there.
    """
    copy = copy_of(path)
    fresh = copy.with_name(copy.name + ".new")
    try:
        fresh.unlink(missing_ok=True)
        os.close(os.open(fresh, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600))
        with closing(sqlite3.connect(fresh)) as target:
            db.backup(target)
            target.execute("PRAGMA journal_mode=delete")
            verdict = target.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise DamagedLedgerError(f"the ledger {path} is damaged ({verdict})")
        _sync(fresh)
        os.utime(fresh, ns=(now * 1_000_000, now * 1_000_000))
        fresh.replace(copy)
    except (OSError, sqlite3.Error) as error:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        if isinstance(error, sqlite3.Error):
            raise translate(error, copy) from None
        raise LedgerUnavailableError(f"the copy {copy} cannot be written: {error}") from None


def _move_aside(path: Path, now: int) -> Path:
    """Rename the damaged file together with its -wal, so that no new database deletes that."""
    aside = path.with_name(f"{path.name}.damaged-{now}")
    for companion in _COMPANIONS:
        with suppress(FileNotFoundError):
            path.with_name(path.name + companion).rename(aside.with_name(aside.name + companion))
    return aside


def _restored(path: Path) -> Path:
    """Return where a copy waits until the damaged ledger has been moved away."""
    return path.with_name(path.name + ".restored")


def _copy_is_whole(path: Path) -> bool:
    """Make the copy ready to take the ledger's place; False if there is none or it is damaged."""
    copy, restored = copy_of(path), _restored(path)
    if not copy.exists():
        return False
    shutil.copyfile(copy, restored)
    restored.chmod(0o600)
    try:
        connect(restored).close()
    except DamagedLedgerError as error:
        logger.error("the copy is damaged too", extra={"fields": {"error": str(error)}})
        restored.unlink()
        return False
    _sync(restored)
    return True


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
