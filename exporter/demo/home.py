"""The home: conversations of several projects, and what Gemini CLI keeps beside them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import orjson

from .chat import Chat
from .plan import Plan, Project
from .records import Record, is_prompt, iso
from .truth import Truth, Write

_BASES = ("harbor-api", "Tide Watch", "atlas.web", "Café Menü", "billing_jobs", "infra", "docs")

_BUSY_SHARE = 6
"""One session of so many starts in each of the busy hours."""


def chats(plan: Plan) -> Iterator[Chat]:
    """The main conversations of a plan, each with its project, start, length and subagents."""
    rng = Random(plan.seed)
    bases = [_BASES[k % len(_BASES)] + f" {k}" * (k >= len(_BASES)) for k in range(plan.projects)]
    projects = [Project(f"/home/ana/src/{base}") for base in bases]
    longest = min(14, (plan.turns - 5 * plan.sessions) // max(1, plan.subagents))
    agents = [rng.randint(4, longest) for _ in range(plan.subagents)]
    lengths = _shares(rng, plan.turns - sum(agents), plan.sessions, least=4)
    slots = [(chat, turn) for chat, length in enumerate(lengths) for turn in range(length - 1)]
    called: list[dict[int, int]] = [{} for _ in lengths]
    for (chat, turn), turns in zip(rng.sample(slots, plan.subagents), agents, strict=True):
        called[chat][turn] = turns
    # Measured: what a turn takes beside its tools' output, and how often that output is repeated.
    fixed, copies = (3_100, 2.42) if plan.format == "jsonl" else (2_400, 1.45)
    output = max(100.0, (plan.turn_bytes - fixed) / copies)
    for number, length in enumerate(lengths):
        project = projects[number] if number < plan.projects else rng.choice(projects)
        # A turn takes less than 100 s, so nothing is dated after the end of the plan.
        latest = plan.end - timedelta(seconds=100 * (length + sum(called[number].values())))
        wished = plan.end - timedelta(days=rng.random() * plan.days)
        wished = wished.replace(hour=min(23, max(0, round(rng.gauss(13, 3.5)))))
        if number % _BUSY_SHARE < len(plan.busy):
            wished = plan.busy[number % _BUSY_SHARE] + timedelta(minutes=rng.randrange(60))
        start = int(min(wished, latest).timestamp() * 1_000)
        own = Random(rng.getrandbits(64))
        yield Chat(own, plan.format, project, start, length, output, called[number])


def write_home(home: Path, plan: Plan) -> Truth:
    """Write `home`/.gemini as `plan` says and return what a reader must find in it.

    A transcript gets the time of its last write. Beside them stand what a reader must leave alone:
    `logs.json` and a tool's output that is itself a transcript. Raises OSError.
    """
    truth, root = Truth(), home / ".gemini"
    projects: dict[str, str] = {}
    for chat in chats(plan):
        slug, files = chat.project.slug, dict[str, list[Write]]()
        for write in chat.writes():
            files.setdefault(write.path, []).append(write)
            truth.add(slug, write)
        for path, writes in files.items():
            content = [_document(writes)] if plan.format == "json" else [w.line for w in writes]
            truth.size += _put(root / path, content, writes[-1].at)
        truth.files += len(files)
        truth.sessions[slug] = truth.sessions.get(slug, 0) + 1
        if chat.project.root not in projects:
            projects[chat.project.root] = slug
            _furnish(root, chat, files[chat.path])
    _put(root / "projects.json", [_pretty({"projects": projects})])
    return truth


def _furnish(root: Path, chat: Chat, writes: list[Write]) -> None:
    """What Gemini CLI keeps beside the transcripts of a project."""
    folder, slug = root / "tmp" / chat.project.slug, chat.project.slug
    for place in (folder, root / "history" / slug):
        _put(place / ".project_root", [chat.project.root.encode()])
    log: list[Record] = []
    for record in (write.record for write in writes if is_prompt(write.record)):
        entry = {"sessionId": chat.id, "messageId": len(log), "type": "user"}
        entry["message"] = record["content"][0]["text"]
        log.append(entry | {"timestamp": record["timestamp"]})
    _put(folder / "logs.json", [_pretty(log)])
    decoy = folder / "tool-outputs" / f"session-{chat.id}" / "run_shell_command_0.jsonl"
    _put(decoy, [write.line for write in writes[:8]])


def _document(writes: list[Write]) -> bytes:
    """The transcript of the JSON era: one document with each message in its last state."""
    header, messages, rest = dict(writes[0].record), dict[str, Record](), Record()
    for write in writes[1:]:
        if "id" in write.record:
            messages[write.record["id"]] = write.record
        else:
            rest = write.record["$set"]
    tail = {key: header.pop(key) for key in ("directories", "kind") if key in header}
    header |= {"lastUpdated": iso(writes[-1].at), "messages": list(messages.values())}
    return _pretty(header | tail | rest)


def _pretty(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2)


def _put(path: Path, content: list[bytes], at: int | None = None) -> int:
    """Write a file, give it the time `at` (ms) and return its size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.writelines(content)
    if at is not None:
        os.utime(path, ns=(at * 1_000_000, at * 1_000_000))
    return sum(map(len, content))


def _shares(rng: Random, total: int, parts: int, least: int) -> list[int]:
    """`total` cut into `parts` uneven pieces of at least `least`."""
    weights = list(accumulate(rng.lognormvariate(0, 0.8) for _ in range(parts)))
    marks = [round((total - least * parts) * weight / weights[-1]) for weight in weights]
    return [least + end - begin for begin, end in zip([0, *marks[:-1]], marks, strict=True)]
