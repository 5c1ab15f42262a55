"""What `history` writes beside the running program, and how a Prometheus takes it in."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.daemon import PATIENCE


def write_history(ledger: Path, text: Path, job: str, instance: str) -> None:
    """Write a ledger's history to a file, with these labels, while the ledger is in use."""
    command = [sys.executable, "-m", "exporter", "history", "--ledger.path", str(ledger)]
    command += ["--label", f"job={job}", "--label", f"instance={instance}"]
    with text.open("wb") as out:
        done = subprocess.run(
            command, stdout=out, stderr=subprocess.PIPE, timeout=PATIENCE, check=False
        )
    assert (done.returncode, done.stderr) == (0, b"")


def take_in(text: Path, data: Path) -> None:
    """Make blocks of a history and move them to the others, as the page on history says.

    `data` is the folder of a Prometheus that does not run meanwhile; it is made if there is none.
    """
    data.mkdir(parents=True, exist_ok=True)
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text)]
    with tempfile.TemporaryDirectory(dir=data.parent) as blocks:
        done = subprocess.run(
            [*command, blocks, "--max-block-duration=54h"],
            capture_output=True,
            timeout=10 * PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        for block in Path(blocks).iterdir():
            shutil.move(block, data / block.name)
