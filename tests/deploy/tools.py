"""Programs that look at the files of `deploy`, and where those files are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
DEPLOY = PROJECT / "deploy"


def need(program: str) -> str:
    """Return the path of a program in this environment or on the PATH; skip the test without it."""
    folders = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    found = shutil.which(program, path=folders)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


def printed(
    *command: str | Path, cwd: Path | None = None, environ: Mapping[str, str] | None = None
) -> str:
    """Run a command with more variables and return its output; AssertionError if it fails."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(environ or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
