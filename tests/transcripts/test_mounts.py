"""Roots whose changes raise no events are known by their file system."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.transcripts.mounts import is_remote

TABLE = """\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:40 / /home/ana/far rw shared:5 - nfs4 server:/export rw
31 30 0:41 / /home/ana/far/near rw - tmpfs tmpfs rw
32 22 0:42 / /mnt/with\\040space rw master:1 - fuse.sshfs host:/ rw
33 22 0:43 / /workspace rw - virtiofs shared rw
34 22 0:44 / /over rw - cifs //server/share rw
35 22 0:45 / /over rw - ext4 /dev/vdb rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "remote"),
    [
        ("/home/ana/.gemini", False),
        ("/home/ana/far", True),
        ("/home/ana/far/.gemini", True),
        ("/home/ana/farther", False),
        ("/home/ana/far/near/x", False),
        ("/mnt/with space/home", True),
        ("/workspace/.gemini/missing/yet", True),
        ("/over/x", False),
    ],
)
def test_the_innermost_mount_decides(tmp_path: Path, path: str, remote: bool) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(TABLE)
    assert is_remote(path, str(table)) is remote


def test_without_a_table_nothing_is_remote(tmp_path: Path) -> None:
    assert not is_remote("/", str(tmp_path / "none"))


def test_the_real_table_can_be_read(tmp_path: Path) -> None:
    assert not is_remote(str(tmp_path))
