"""Generated homes: made once, kept on request, and read into the page cache beforehand."""

import json
import os
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from exporter.demo import Calls, Format, Plan, Truth, Usage, write_home

END = datetime(2026, 10, 1, tzinfo=UTC)
_PAIR = "\t"


def plan(era: Format, scale: float) -> Plan:
    """The home of the speed table (0.9 GB, 45,000 turns, 300 files), shrunk by `scale`."""
    sessions, subagents = max(2, round(240 * scale)), round(60 * scale)
    turns = max(6 * (sessions + subagents), round(45_000 * scale))
    return Plan(
        end=END,
        projects=min(12, sessions),
        sessions=sessions,
        subagents=subagents,
        turns=turns,
        format=era,
    )


def home(folder: Path, wanted: Plan) -> tuple[Path, Truth]:
    """The home of a plan below `folder`, written unless it is there, and its truth.

    The truth stands beside the home under a name that only this plan has, and is written last, so
    an interrupted run leaves nothing that a later one would take for a finished home.
    """
    name = f"{wanted.format}-{wanted.turns}-{wanted.sessions}-{wanted.subagents}-{wanted.seed}"
    place, record = folder / name, folder / f"{name}.truth.json"
    if record.exists():
        return place, _load(record.read_text())
    truth = write_home(place, wanted)
    record.write_text(_dump(truth))
    return place, truth


def warm(place: Path) -> None:
    """Read every file once, so that no measured run waits for the disk."""
    buffer = bytearray(1 << 20)
    for path in place.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def transcripts(place: Path) -> set[str]:
    """The real paths of the transcripts of a home."""
    paths = (place / ".gemini" / "tmp").glob("*/chats/**/*.json*")
    return {os.path.realpath(path) for path in paths}


def _dump(truth: Truth) -> str:
    fields = asdict(truth)
    for name in ("usage", "calls"):
        fields[name] = {_PAIR.join(key): value for key, value in getattr(truth, name).items()}
    return json.dumps(fields)


def _load(text: str) -> Truth:
    fields = json.loads(text)
    usage = {tuple(key.split(_PAIR)): Usage(*value) for key, value in fields.pop("usage").items()}
    calls = {tuple(key.split(_PAIR)): Calls(*value) for key, value in fields.pop("calls").items()}
    return Truth(usage=usage, calls=calls, **fields)
