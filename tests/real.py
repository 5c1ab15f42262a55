"""Homes that Gemini CLI itself wrote, with the usage that a reader must find in them.

`transcripts/real/README.md` says what the sets are and how they are packed.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "transcripts" / "real"
ARCHIVE = DATA / "sets.tar.xz"
INDEX = DATA / "index.csv"

_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Usage:
    """Turns and their tokens; the five kinds are disjoint, so `input` is without `cached`."""

    turns: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0
    thoughts: int = 0
    tool: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.turns + other.turns,
            self.input + other.input,
            self.cached + other.cached,
            self.output + other.output,
            self.thoughts + other.thoughts,
            self.tool + other.tool,
        )

    @property
    def tokens(self) -> int:
        """The sum of the five kinds."""
        return self.input + self.cached + self.output + self.thoughts + self.tool


@dataclass(frozen=True, slots=True)
class ToolCount:
    """Calls of a tool with any status, and those of them that ended as error or cancelled."""

    calls: int = 0
    errors: int = 0
    cancellations: int = 0

    def __add__(self, other: ToolCount) -> ToolCount:
        return ToolCount(
            self.calls + other.calls,
            self.errors + other.errors,
            self.cancellations + other.cancellations,
        )


@dataclass(frozen=True, slots=True)
class Expected:
    """What must be counted: usage by (project, model), tools by (project, model, tool)."""

    usage: dict[tuple[str, str], Usage]
    tools: dict[tuple[str, str, str], ToolCount]


@dataclass(frozen=True, slots=True)
class Write:
    """One thing that Gemini CLI did to a file; paths are relative to `.gemini`."""

    seq: int
    time: float
    """Seconds since the epoch."""
    op: str
    path: str
    to: str = ""
    """Where a rename or a copy goes."""
    offset: int = 0
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Poll:
    """What a second process read from a file, if it differed from its read before."""

    seq: int
    time: float
    """Seconds since the reading began."""
    path: str
    data: bytes | None
    """None if there was no such file."""


@dataclass(frozen=True)
class RealSet:
    """One home with its truth, unpacked in `folder`, which all tests share and none may change."""

    name: str
    folder: Path

    @property
    def gemini(self) -> Path:
        """The `.gemini` folder as Gemini CLI left it."""
        return self.folder / "home" / ".gemini"

    @cached_property
    def truth(self) -> dict[str, Any]:
        """The set's `truth.json`."""
        truth: dict[str, Any] = json.loads((self.folder / "truth.json").read_bytes())
        return truth

    @property
    def labels(self) -> dict[str, str]:
        """The project label by project path, for the projects that have a folder.

        It is the name of the slug folder. A project that only has a hash folder gets the slug of
        the same path in `projects.json` or, if there is none, `unknown-<first 8 of the hash>`.
        Raises ValueError if a project has several slug folders, which no set has.
        """
        registry = self.gemini / "projects.json"
        known = json.loads(registry.read_bytes())["projects"] if registry.exists() else {}
        labels = {}
        for project in self.truth["projects"]:
            names = [folder.rpartition("/")[2] for folder in project["dirs"]]
            slugs = [name for name in names if not _HASH.fullmatch(name)]
            if len(slugs) > 1:
                raise ValueError(f"{self.name}: several slugs of {project['root']}: {slugs}")
            if names:
                unknown = f"unknown-{names[0][:8]}"
                labels[project["root"]] = (slugs or [known.get(project["root"], unknown)])[0]
        return labels

    def expected(self, watched: bool = False) -> Expected:
        """Return what a reader of the home must count.

        `watched` is for a reader that saw every state of the files during the replay: it also
        counts what was on disk for a while only.
        """
        tables = self.truth["expected"]
        if watched:
            tables = self.truth.get("expected_watched", tables)
        labels = self.labels
        usage: dict[tuple[str, str], Usage] = defaultdict(Usage)
        for row in tables["usage"]:
            usage[labels[row["project"]], self._model(row)] += Usage(
                turns=row["turns"],
                input=row["input"] - row["cached"],
                cached=row["cached"],
                output=row["output"],
                thoughts=row["thoughts"],
                tool=row["tool"],
            )
        tools: dict[tuple[str, str, str], ToolCount] = defaultdict(ToolCount)
        for row in tables["tool_calls"]:
            tools[labels[row["project"]], self._model(row), row["tool"]] += ToolCount(
                calls=row["n"],
                errors=row["n"] if row["status"] == "error" else 0,
                cancellations=row["n"] if row["status"] == "cancelled" else 0,
            )
        return Expected(dict(usage), dict(tools))

    def _model(self, row: dict[str, Any]) -> str:
        """Return the row's model or, where the files name none, the one that was asked."""
        if row["model"] is not None:
            return str(row["model"])
        (asked,) = {
            str(call["model"])
            for call in self.truth["api_calls"]
            if call["project"] == row["project"] and call.get("model_on_disk", "") is None
        }
        return asked

    @property
    def has_replay(self) -> bool:
        """Whether the writes were recorded."""
        return (self.folder / "replay.jsonl").exists()

    def replay(self) -> Iterator[Write]:
        """Yield the writes in the order in which they happened; none if they were not recorded."""
        for line in _lines(self.folder / "replay.jsonl"):
            yield Write(
                seq=line["seq"],
                time=line["t"],
                op=line["op"],
                path=line["path"],
                to=line.get("to", ""),
                offset=line.get("offset", 0),
                data=line.get("data", "").encode(),
            )

    def play(self, gemini_root: Path) -> Iterator[Write]:
        """Apply the replay to an empty folder, one write a step; yield each write when done."""
        for write in self.replay():
            apply(write, gemini_root)
            yield write

    def polled(self) -> Iterator[Poll]:
        """Yield what a second process read meanwhile; nothing if there was none."""
        for line in _lines(self.folder / "polled.jsonl"):
            data = None if line["size"] is None else line["data"].encode()
            yield Poll(seq=line["seq"], time=line["t"], path=line["path"], data=data)

    def copy_to(self, gemini_root: Path) -> Path:
        """Copy the `.gemini` folder to a path that does not exist yet and return that path."""
        shutil.copytree(self.gemini, gemini_root)
        return gemini_root


def names(*, replay: bool = False) -> list[str]:
    """Return the names of the sets, or of those with a replay, without unpacking any."""
    with INDEX.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["set"] for row in rows if row["replay"] == "yes" or not replay]


def sets(root: Path) -> list[RealSet]:
    """Return all sets by name, unpacked below `root` by the first call."""
    if not root.exists() or not any(root.iterdir()):
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(root, filter=_without_time)
    return [RealSet(folder.name, folder) for folder in sorted(root.iterdir())]


def apply(write: Write, gemini_root: Path) -> None:
    """Do one write of a replay below `gemini_root`; raise ValueError if its operation is unknown.

    A replay holds no making of folders: files bring theirs along.
    """
    path = gemini_root / write.path
    match write.op:
        case "create" | "truncate":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
        case "open-create":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        case "write":
            with path.open("r+b") as file:
                file.seek(write.offset)
                file.write(write.data)
        case "rename" | "copy":
            to = gemini_root / write.to
            to.parent.mkdir(parents=True, exist_ok=True)
            if write.op == "rename":
                path.replace(to)
            else:
                shutil.copyfile(path, to)
        case "unlink":
            path.unlink()
        case "rmdir":
            # A lock folder never held a file, so nothing has made it.
            with suppress(FileNotFoundError):
                path.rmdir()
        case _:
            raise ValueError(f"write {write.seq}: unknown operation {write.op!r}")


def _without_time(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
    """Check a member; its time is zeroed in the archive, so the file gets that of the unpacking."""
    checked = tarfile.data_filter(member, path)
    checked.mtime = None  # type: ignore[assignment]  # extractall() then leaves the time alone
    return checked


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        with path.open("rb") as file:
            yield from map(json.loads, file)
