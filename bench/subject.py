"""The exporter under test: how it is started, where it works, and whether it counts right."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from exporter.demo import Plan, Truth

from . import homes, verify
from .process import CommandError, Run, run
from .server import Server, running


@dataclass(frozen=True, slots=True)
class Subject:
    """The command under test and its surroundings.

    Homes are made and kept in `folder`, everything else in `scratch`. Each row is measured `runs`
    times where it takes several runs; `scale` shrinks homes, counts and times.
    """

    command: Sequence[str]
    folder: Path
    scratch: Path
    env: Mapping[str, str]
    runs: int
    scale: float
    _numbers: Iterator[int] = field(default_factory=count)

    def scaled(self, full: int, least: int) -> int:
        """How many of something there are at this scale."""
        return max(least, round(full * self.scale))

    def home(self, plan: Plan) -> tuple[Path, Truth]:
        """A generated home in the page cache and its truth; it must not be changed."""
        place, truth = homes.home(self.folder, plan)
        homes.warm(place)
        return place, truth

    def copy(self, plan: Plan) -> tuple[Path, Truth]:
        """The same as a copy to write in."""
        place, truth = self.home(plan)
        target = self.scratch / f"home-{next(self._numbers)}"
        shutil.copytree(place, target)
        return target, truth

    def empty(self) -> Path:
        """A home without transcripts."""
        place = self.scratch / "empty"
        (place / ".gemini" / "tmp").mkdir(parents=True, exist_ok=True)
        return place

    def ledger(self) -> Path:
        """The path of a ledger that does not exist yet, in a folder of its own."""
        folder = self.scratch / f"ledger-{next(self._numbers)}"
        folder.mkdir()
        return folder / "ledger.db"

    def once(self, home: Path, ledger: Path) -> list[str]:
        """The command that reads a home into a ledger and prints the exposition."""
        return [*self.command, "once", *self._options(home, ledger)]

    def scan(self, home: Path, ledger: Path, truth: Truth) -> Run:
        """Run it, and measure it if what it prints is true; raises CommandError otherwise."""
        done = run(self.once(home, ledger), self.env)
        self._check(done.output.decode(), truth)
        return done

    @contextmanager
    def serve(self, home: Path, ledger: Path) -> Iterator[Server]:
        """A server that follows a home, ready; raises CommandError."""
        address = ["--web.listen-address", "127.0.0.1:0"]
        command = [*self.command, "serve", *address, *self._options(home, ledger)]
        log = ledger.with_name(f"serve-{next(self._numbers)}.log")
        with running(command, self.env, log) as server:
            yield server

    def check(self, server: Server, truth: Truth) -> None:
        """Raise CommandError unless the server shows what is true."""
        self._check(server.text(), truth)

    def _check(self, exposition: str, truth: Truth) -> None:
        wrong = verify.differences(exposition, truth)
        if wrong:
            shown = "\n  ".join(wrong[:8])
            raise CommandError(f"{len(wrong)} series are wrong:\n  {shown}")

    def _options(self, home: Path, ledger: Path) -> list[str]:
        return ["--transcripts.root", str(home / ".gemini"), "--ledger.path", str(ledger)]
