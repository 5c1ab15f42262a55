"""Which roots lie on a file system whose changes raise no events here."""

from __future__ import annotations

import os
import re
from typing import Final

_TABLE: Final = "/proc/self/mountinfo"
_REMOTE: Final = re.compile(
    r"nfs\d?|cifs|smb\d?|smbfs|9p|afs|ceph|glusterfs|lustre|ocfs2|virtiofs|vboxsf|prl_fs|drvfs"
    r"|fakeowner|fuse\..+"
)
"""File systems that others write to behind the kernel's back: networks and virtual machines."""
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


def is_remote(path: str, table: str = _TABLE) -> bool:
    """Tell whether a folder, or the nearest one above it that exists, is on such a file system.

    `table` is in the format of proc_pid_mountinfo(5). False where there is none.
    """
    try:
        with open(table, encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return False
    path = os.path.realpath(path)
    best, found = "", ""
    for fields in mounts:
        if len(fields) < 7 or "-" not in fields:
            continue
        point = _ESCAPE.sub(lambda octal: chr(int(octal[1], 8)), fields[4])
        # Of several mounts on one point the last is on top.
        if len(point) >= len(best) and os.path.join(path, "").startswith(os.path.join(point, "")):
            best, found = point, fields[fields.index("-") + 1]
    return _REMOTE.fullmatch(found) is not None
