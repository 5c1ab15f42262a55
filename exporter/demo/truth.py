"""What a reader of the home must find, and the writes that make it so."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import add
from typing import NamedTuple

import orjson

from .records import Record


class Usage(NamedTuple):
    """Turns and their tokens in five kinds that do not overlap: `input` is without `cached`."""

    turns: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0
    thoughts: int = 0
    tool: int = 0


class Calls(NamedTuple):
    """Finished tool calls; `calls` includes the errors and the cancellations."""

    calls: int = 0
    errors: int = 0
    cancellations: int = 0


Outcomes = tuple[tuple[str, Calls], ...]
"""Finished tool calls by the name of their tool."""


@dataclass(frozen=True, slots=True)
class Write:
    """One record as Gemini CLI hands it to `path` (below `.gemini`) at `at` (ms since the epoch).

    `usage` and `calls` are what a reader can count from now on and could not before.
    """

    at: int
    path: str
    record: Record
    model: str
    usage: Usage | None = None
    calls: Outcomes = ()

    @property
    def line(self) -> bytes:
        """The bytes that are appended in the JSONL era."""
        return orjson.dumps(self.record, option=orjson.OPT_APPEND_NEWLINE)


@dataclass(slots=True)
class Truth:
    """What a reader of the home must find; projects are named by their slugs.

    `usage` is kept by (project, model), `calls` by (project, model, tool), `sessions` are the main
    sessions by project; `files` and `size` (bytes) cover transcripts only.
    """

    usage: dict[tuple[str, str], Usage] = field(default_factory=dict)
    calls: dict[tuple[str, str, str], Calls] = field(default_factory=dict)
    sessions: dict[str, int] = field(default_factory=dict)
    files: int = 0
    size: int = 0

    @property
    def total(self) -> Usage:
        """The usage of all projects and models together."""
        return Usage(*map(sum, zip(*self.usage.values(), strict=True)))

    def add(self, project: str, write: Write) -> None:
        """Count what `write` made readable for the first time."""
        if write.usage is not None:
            pair = (project, write.model)
            self.usage[pair] = Usage(*map(add, self.usage.get(pair, Usage()), write.usage))
        for tool, calls in write.calls:
            key = (project, write.model, tool)
            self.calls[key] = Calls(*map(add, self.calls.get(key, Calls()), calls))


def usage_of(tokens: Record) -> Usage:
    """The disjoint kinds of a recorded `tokens` object, whose `input` includes what was cached."""
    fresh = tokens["input"] - tokens["cached"]
    return Usage(1, fresh, *(tokens[kind] for kind in ("cached", "output", "thoughts", "tool")))


def outcome_of(call: Record) -> tuple[str, Calls]:
    """The tool of a finished call, and the call counted."""
    status = call["status"]
    return call["name"], Calls(1, int(status == "error"), int(status == "cancelled"))
