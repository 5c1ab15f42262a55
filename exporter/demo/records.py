"""Records as Gemini CLI writes them, and what is asked of them in many places."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

Record = dict[str, Any]


@lru_cache(16)
def iso(at: int) -> str:
    """The time `at` (ms since the epoch) as the records spell it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at // 1000)) + f".{at % 1000:03}Z"


def is_prompt(record: Record) -> bool:
    """Whether a person typed it: tools' answers are `user` records too."""
    return record.get("type") == "user" and "text" in record["content"][0]


def remembered(record: Record) -> Record:
    """A message as a checkpoint repeats it: same id and tokens, its calls also in the content."""
    if "model" not in record:
        return record
    parts: list[Record] = [{"text": record["content"]}] if record["content"] else []
    for call in record.get("toolCalls", ()):
        asked = {"name": call["name"], "args": call["args"], "id": call["id"]}
        parts.append({"functionCall": asked})
    return record | {"content": parts}
