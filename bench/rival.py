"""ccusage, the rival: it reads the same transcripts, prints a report and keeps nothing."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from exporter.demo import Truth

from .process import CommandError, Run, run

VERSION = "20.0.24"
TOLERANCE = 0.01
"""How far its token total may be from the truth before we doubt that it read the files."""


def install() -> Path:
    """The native program of the pinned version, installed by npm into a cache folder when needed.

    Raises CommandError if npm is missing or cannot install it.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "gemini-cli-exporter" / f"ccusage-{VERSION}"
    pattern = "node_modules/@ccusage/ccusage-*/bin/ccusage"
    if not list(folder.glob(pattern)):
        if shutil.which("npm") is None:
            raise CommandError("npm is needed to install ccusage")
        folder.mkdir(parents=True, exist_ok=True)
        npm = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund"]
        done = subprocess.run([*npm, f"ccusage@{VERSION}"], capture_output=True, text=True)
        if done.returncode or not list(folder.glob(pattern)):
            raise CommandError(f"npm could not install ccusage {VERSION}: {done.stderr[-500:]}")
    program = next(folder.glob(pattern))
    program.chmod(0o755)  # it is published without; its own launcher does the same
    return program


def scan(program: Path, home: Path, env: Mapping[str, str]) -> Run:
    """One report over a home, without network. Raises CommandError if it fails."""
    command = [str(program), "gemini", "daily", "--json", "--offline"]
    return run(command, {**env, "GEMINI_DATA_DIR": str(home / ".gemini")})


def excess(scanned: Run, truth: Truth) -> float:
    """By how much it counts more tokens than there are, relatively; negative if fewer.

    Raises CommandError beyond TOLERANCE: it would then not have done the work it is measured at.
    """
    found = json.loads(scanned.output)["totals"]["totalTokens"] / sum(truth.total[1:]) - 1
    if abs(found) > TOLERANCE:
        raise CommandError(f"ccusage counts {found:+.2%} tokens: it did not read this home")
    return float(found)
