"""Opening files that others write: never a link, a pipe or a device, never blocking."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

_FLAGS: Final = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)

_NOT_REGULAR: Final = errno.ENODEV
"""No file system gives this for a file, so that it can stand for a path that is none."""
_SIGNED: Final = (1 << 63) - 1


def open_regular(path: str) -> tuple[int, os.stat_result]:
    """Return a descriptor and the status of a regular file; raises OSError for anything else."""
    fd = os.open(path, _FLAGS)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(_NOT_REGULAR, "not a regular file", path)
    except BaseException:
        os.close(fd)
        raise
    return fd, status


def identity(status: os.stat_result) -> tuple[int, int]:
    """Return device and inode, cut to the 63 bits that the ledger stores."""
    return status.st_dev & _SIGNED, status.st_ino & _SIGNED


def modified(status: os.stat_result) -> int:
    """Return the modification time in nanoseconds, within the 63 bits that the ledger stores."""
    return max(-_SIGNED, min(status.st_mtime_ns, _SIGNED))


def read_small(path: str, limit: int) -> bytes:
    """Return the whole of a small regular file; raises OSError, also if it is over the limit."""
    fd, status = open_regular(path)
    with open(fd, "rb") as file:
        if status.st_size > limit:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", path)
        return file.read(limit)


_ERRORS: Final = {
    _NOT_REGULAR: "not_regular",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.EIO: "io",
    errno.ESTALE: "stale",
    errno.ELOOP: "link",
}
ERROR_REASONS: Final = ("permission", "io", "stale", "link", "not_regular", "other")
"""The values that `error_reason` returns."""


def error_reason(error: OSError) -> str:
    """Return in one word why a file or folder could not be read."""
    return _ERRORS.get(error.errno or 0, "other")
