"""Generated homes: made once, kept on request, and read into the page cache beforehand."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from exporter.demo import Calls, Format, Plan, Truth, Usage, write_home

END = datetime(2026, 10, 1, tzinfo=UTC)
_PAIR = "\t"


def standard(era: Format, scale: float) -> Plan:
    """The home of the speed table: 0.9 GB, 45,000 turns, 300 files in 12 projects."""
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


def long(scale: float) -> Plan:
    """One session of 256 MB."""
    return Plan(end=END, projects=1, sessions=1, subagents=0, turns=max(6, round(12_600 * scale)))


def many(sessions: int, projects: int) -> Plan:
    """Many short sessions of about 24 kB."""
    return Plan(
        end=END,
        projects=projects,
        sessions=sessions,
        subagents=0,
        turns=6 * sessions,
        turn_bytes=4_000,
    )


def home(folder: Path, plan: Plan) -> tuple[Path, Truth]:
    """The home of a plan below `folder`, written unless it is there, and its truth.

    The truth stands beside the home under a name that only this plan has, and is written last, so
    an interrupted run leaves nothing that a later one would take for a finished home.
    """
    sizes = (plan.turns, plan.projects, plan.sessions, plan.subagents, plan.turn_bytes, plan.seed)
    name = "-".join(map(str, (plan.format, *sizes)))
    place, record = folder / name, folder / f"{name}.truth.json"
    if record.exists():
        return place, _load(record.read_text())
    truth = write_home(place, plan)
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


def transcripts(place: Path) -> list[Path]:
    """The transcripts of a home, as real paths."""
    return sorted((place.resolve() / ".gemini" / "tmp").glob("*/chats/**/*.json*"))


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
