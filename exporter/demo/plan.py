"""What home to invent: its size, its format, its projects."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Format = Literal["jsonl", "json"]
"""The format of the transcripts: JSONL is what Gemini CLI writes since 0.39."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What home to invent: `turns` in all, spread over `sessions` main and `subagents` more files.

    Nothing in it is dated later than `end` (aware), and most sessions start in the `days` before
    it; for each of the `busy` hours, named by their begin, every sixth starts in that hour instead.
    A turn takes about `turn_bytes` of its transcript. Raises ValueError if there are fewer than one
    session a project or six turns a file, or more subagents than sessions.
    """

    end: datetime
    projects: int = 5
    sessions: int = 40
    subagents: int = 10
    turns: int = 2_000
    format: Format = "jsonl"
    days: int = 30
    seed: int = 1
    turn_bytes: int = 20_000
    busy: tuple[datetime, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.projects <= self.sessions:
            raise ValueError("a plan needs a session for each of at least one project")
        if not 0 <= self.subagents <= self.sessions:
            raise ValueError("a plan needs a session for each subagent")
        if self.turns < 6 * (self.sessions + self.subagents):
            raise ValueError("a plan needs at least six turns a file")
        if self.end.tzinfo is None:
            raise ValueError("a plan needs a time zone for its end")


class Project:
    """A project folder: its path, the slug that Gemini CLI files it under, and its hash."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.slug = re.sub("[^a-z0-9]+", "-", root.rpartition("/")[2].lower()).strip("-")
        self.hash = hashlib.sha256(root.encode()).hexdigest()
