"""Measure the exporter against ccusage on generated homes and print one table.

Exits with 1 if a value misses what is required of it or a count is wrong, with 2 for wrong usage.
"""

import argparse
import os
import platform
import shlex
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from exporter.demo import Format, Plan, Truth

from . import homes, rival, verify
from .process import CommandError, Run, opened, run


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table; `value` is what must be at most `limit` and should be at most `goal`."""

    what: str
    ours: str
    rival: str = ""
    value: float | None = None
    limit: float | None = None
    goal: float | None = None
    note: str = ""

    @property
    def missed(self) -> bool:
        """Whether a required value is not reached."""
        return self.value is not None and self.limit is not None and self.value > self.limit

    @property
    def verdict(self) -> str:
        """Goal, ok, MISSED, or the reason why there is none."""
        if self.value is None or self.limit is None or self.goal is None:
            return self.note
        return "MISSED" if self.missed else "goal" if self.value <= self.goal else "ok"


@dataclass(frozen=True, slots=True)
class Bench:
    """The command under test and where it works; each scan is checked against the truth."""

    command: Sequence[str]
    folder: Path
    scratch: Path
    env: Mapping[str, str]
    runs: int
    scale: float
    numbers: Iterator[int]

    def home(self, era: Format) -> tuple[Path, Truth, Plan]:
        """A generated home in the page cache, with its truth and its plan."""
        plan = homes.plan(era, self.scale)
        place, truth = homes.home(self.folder, plan)
        homes.warm(place)
        return place, truth, plan

    def empty(self) -> Path:
        """A home without transcripts."""
        place = self.scratch / "empty"
        (place / ".gemini" / "tmp").mkdir(parents=True, exist_ok=True)
        return place

    def ledger(self) -> Path:
        """The path of a ledger that does not exist yet."""
        return self.scratch / f"ledger-{next(self.numbers)}" / "ledger.db"

    def once(self, home: Path, ledger: Path) -> list[str]:
        """The command that reads a home into a ledger and prints the exposition."""
        ledger.parent.mkdir(exist_ok=True)
        root = str(home / ".gemini")
        return [*self.command, "once", "--transcripts.root", root, "--ledger.path", str(ledger)]

    def scan(self, home: Path, ledger: Path, truth: Truth) -> Run:
        """Run it, and measure it if what it prints is true; raises CommandError otherwise."""
        done = run(self.once(home, ledger), self.env)
        wrong = verify.differences(done.output.decode(), truth)
        if wrong:
            shown = "\n  ".join(wrong[:8])
            raise CommandError(f"{len(wrong)} series are wrong on {home.name}:\n  {shown}")
        return done


def cold(bench: Bench, era: Format) -> Iterator[Row]:
    """The first scan of a home into a new ledger, in pairs with ccusage."""
    home, truth, plan = bench.home(era)
    program = rival.install()
    pairs: list[tuple[Run, Run]] = []
    for _ in range(bench.runs):
        ours = bench.scan(home, bench.ledger(), truth)
        pairs.append((ours, rival.scan(program, home, bench.env)))
    excess = rival.excess(pairs[-1][1], truth)
    print(
        f".{era}: {truth.size / 1e6:,.0f} MB, {plan.turns:,} turns, {truth.files} files; "
        f"counts are exact, ccusage counts {excess:+.3%} tokens"
    )
    yield _compared(f"cold scan of .{era}: CPU", pairs, lambda one: one.cpu, _seconds, 2.0)
    if era == "jsonl":
        yield _compared(
            f"cold scan of .{era}: wall time", pairs, lambda one: one.wall, _seconds, 2.5
        )
    yield _compared(f"cold scan of .{era}: peak memory", pairs, lambda one: one.peak, _size, 1.5)


def restart(bench: Bench) -> Iterator[Row]:
    """A start with a ledger that knows everything already, against one that has nothing to know."""
    home, truth, _ = bench.home("jsonl")
    empty, blank, nothing = bench.empty(), bench.ledger(), Truth()
    bench.scan(empty, blank, nothing)
    triples: list[tuple[Run, Run, Run]] = []
    for _ in range(bench.runs):
        ledger = bench.ledger()
        first, again = bench.scan(home, ledger, truth), bench.scan(home, ledger, truth)
        triples.append((first, again, bench.scan(empty, blank, nothing)))
    what = "unchanged restart: transcripts opened"
    try:
        number = opened(bench.once(home, ledger), bench.env, homes.transcripts(home))
        yield Row(what, str(number), "", number, 0, 0)
    except CommandError as error:
        yield Row(what, "", note=f"skipped: {error}")
    yield Row(
        "unchanged restart: CPU beyond empty",
        _seconds(statistics.median(again.cpu - idle.cpu for _, again, idle in triples)),
        _seconds(statistics.median(first.cpu for first, _, _ in triples)),
        statistics.median((again.cpu - idle.cpu) / first.cpu for first, again, idle in triples),
        1 / 10,
        1 / 50,
    )
    idle = statistics.median(idle.cpu for _, _, idle in triples)
    yield Row("empty home: CPU", _seconds(idle), note="for information")


STEPS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "jsonl": partial(cold, era="jsonl"),
    "json": partial(cold, era="json"),
    "restart": restart,
}


def _compared(
    what: str,
    pairs: list[tuple[Run, Run]],
    figure: Callable[[Run], float],
    shown: Callable[[float], str],
    limit: float,
) -> Row:
    ours, theirs = ([figure(one) for one in side] for side in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    return Row(
        what, shown(statistics.median(ours)), shown(statistics.median(theirs)), ratio, limit, 1.0
    )


def _seconds(value: float) -> str:
    return f"{value:.3f} s"


def _size(value: float) -> str:
    return f"{value / 1e6:.0f} MB"


def _show(rows: list[Row], judged: bool, caption: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(caption=caption)
    table.add_column("what")
    for title in ("ours", "rival", "ratio", "must be", "goal"):
        table.add_column(title, justify="right")
    table.add_column("verdict")
    for row in rows:
        numbers = [row.value, row.limit, row.goal]
        cells = ["" if number is None else f"{number:.3g}" for number in numbers]
        table.add_row(
            row.what, row.ours, row.rival, *cells, row.verdict if judged or row.note else ""
        )
    console = Console()
    console.width = max(console.width, 100)
    console.print(table)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    beside = Path(sys.executable).with_name("gemini-cli-exporter")
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="pairs of runs (default 5)")
    parser.add_argument("--only", choices=STEPS, action="append", help="only these rows")
    parser.add_argument("--keep", type=Path, help="make the homes in this folder and reuse them")
    parser.add_argument("--command", default=str(beside), help="the exporter to measure")
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="size of the homes; below 1 counts are checked and ratios are not judged",
    )
    arguments = parser.parse_args(argv)
    if arguments.runs < 1 or not 0 < arguments.scale <= 1:
        parser.error("--runs must be at least 1, --scale above 0 and at most 1")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run the wanted rows; see the module for the exit status."""
    arguments = _arguments(argv)
    if arguments.keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.keep) as scratch:
        env = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        env |= {"HOME": scratch, "XDG_STATE_HOME": scratch, "TZ": "UTC"}
        place = Path(scratch)
        bench = Bench(
            command=shlex.split(arguments.command),
            folder=arguments.keep or place,
            scratch=place,
            env=env,
            runs=arguments.runs,
            scale=arguments.scale,
            numbers=count(),
        )
        rows: list[Row] = []
        try:
            bench.scan(bench.empty(), bench.ledger(), Truth())  # so that all is compiled and cached
            for name in arguments.only or STEPS:
                rows += STEPS[name](bench)
        except CommandError as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
    judged = arguments.scale == 1
    cores, python = os.cpu_count(), platform.python_version()
    caption = f"{cores} cores, Python {python}, ccusage {rival.VERSION}, {bench.runs} pairs"
    _show(rows, judged, caption if judged else f"{caption}; small homes, so nothing is judged")
    return int(judged and any(row.missed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
