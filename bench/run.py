"""Measure the exporter on generated homes, partly against ccusage, and print one table.

Exits with 1 if a value misses what is required of it, a count is wrong or a step fails, with 2 for
wrong usage.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from exporter.demo import Truth

from . import rival
from .process import CommandError
from .rows import STEPS
from .subject import Subject
from .table import Row, render


def main(argv: Sequence[str] | None = None) -> int:
    """Run the wanted steps; see the module for the exit status."""
    arguments = _arguments(argv)
    if arguments.keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.keep) as scratch:
        place = Path(scratch)
        env = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        env |= {"HOME": scratch, "XDG_STATE_HOME": scratch, "TZ": "UTC"}
        subject = Subject(
            command=shlex.split(arguments.command),
            folder=arguments.keep or place,
            scratch=place,
            env=env,
            runs=arguments.runs,
            scale=arguments.scale,
        )
        rows, failed = _measure(subject, arguments.only or list(STEPS))
    judged = arguments.scale == 1
    print(render(rows, judged))
    print(
        f"{os.cpu_count()} cores, Python {platform.python_version()}, ccusage {rival.VERSION}, "
        f"{arguments.runs} runs" + ("" if judged else "; at this scale nothing is judged")
    )
    return int(failed or (judged and any(row.missed for row in rows)))


def _measure(subject: Subject, names: Sequence[str]) -> tuple[list[Row], bool]:
    """The rows of these steps, and whether one of them failed; the others go on."""
    rows, failed = list[Row](), False
    try:
        # The first run of all compiles what is not compiled yet.
        subject.scan(subject.empty(), subject.ledger(), Truth())
    except CommandError as error:
        print(f"bench: {error}", file=sys.stderr)
        return rows, True
    for name in names:
        print(f"bench: {name}", file=sys.stderr)
        try:
            for row in STEPS[name](subject):
                rows.append(row)
        except CommandError as error:
            print(f"bench: {name} failed: {error}", file=sys.stderr)
            rows.append(Row(name, note="FAILED"))
            failed = True
    return rows, failed


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    beside = Path(sys.executable).with_name("gemini-cli-exporter")
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs or pairs of runs (default 5)")
    parser.add_argument("--only", choices=STEPS, action="append", help="only this step; repeatable")
    parser.add_argument("--keep", type=Path, help="make homes in this folder and use them again")
    parser.add_argument("--command", default=str(beside), help="the exporter to measure")
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="size of homes, counts and times; below 1 counts are checked and no value is judged",
    )
    arguments = parser.parse_args(argv)
    if arguments.runs < 1 or not 0 < arguments.scale <= 1:
        parser.error("--runs must be at least 1, --scale above 0 and at most 1")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
