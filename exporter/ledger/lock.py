"""The lock that keeps two exporters from one ledger."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

from .errors import LedgerError
from .schema import unusable

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt

_LOCK_AT = 1 << 30
"""Windows locks a byte far behind the text, so that others can still read who holds the lock."""


class LedgerLock:
    """An exclusive lock on `<ledger>.lock`, released by the operating system if we are killed.

    It is a file of its own: closing any descriptor of the database would drop SQLite's locks.
    """

    def __init__(self, ledger: Path, address: str) -> None:
        """Take the lock or raise LedgerError naming the holder. `address` tells others about us.

        Its folder is made where there is none.
        """
        self._path = ledger.with_name(ledger.name + ".lock")
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        try:
            ledger.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._fd = os.open(self._path, flags, 0o600)
        except OSError as error:
            raise unusable(ledger, error) from None
        try:
            _lock(self._fd)
        except OSError:
            holder = _holder(self._fd)
            os.close(self._fd)
            raise LedgerError(
                f"the ledger {ledger} is in use by {holder}; stop that exporter, "
                "or give this one its own --ledger.path"
            ) from None
        me = {"host": socket.gethostname(), "pid": os.getpid(), "address": address}
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)
        os.write(self._fd, json.dumps(me).encode())

    def release(self) -> None:
        """Give the lock back; it may have been given back before."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _lock(fd: int) -> None:
    if fcntl is not None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        os.lseek(fd, _LOCK_AT, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)


def _holder(fd: int) -> str:
    try:
        os.lseek(fd, 0, os.SEEK_SET)
        who: dict[str, Any] = json.loads(os.read(fd, 4096))
        where = f" on {who['host']}" if who["host"] != socket.gethostname() else ""
        serving = f" serving {who['address']}" if who["address"] else ""
        return f"process {who['pid']}{where}{serving}"
    except (ValueError, KeyError, TypeError, OSError):
        return "another process"
