"""Sessions that go on: replies appended to transcripts one by one, and the truth after each."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from operator import add
from pathlib import Path

from exporter.demo import Truth, Usage

MODEL = "gemini-2.5-pro"
_TEXT = "The route handler asks the berth service twice; I keep the first answer. " * 10


class Writer:
    """Writes into the transcripts of one home and keeps its truth up to date."""

    def __init__(self, home: Path, truth: Truth) -> None:
        self._tmp = home.resolve() / ".gemini" / "tmp"
        self._truth = truth
        self.written = 0
        """Bytes appended so far."""

    def append(self, transcript: Path) -> tuple[str, int]:
        """Append one reply; return the series that counts it and the value that this one gets."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        used = Usage(turns=1, input=1_200, cached=20_000, output=180, thoughts=240)
        tokens = {"input": used.input + used.cached, "output": used.output, "cached": used.cached}
        tokens |= {"thoughts": used.thoughts, "tool": 0}
        tokens["total"] = used.input + used.cached + used.output + used.thoughts
        record: dict[str, object] = {
            "id": str(uuid.uuid4()),
            "timestamp": now,
            "type": "gemini",
            "content": _TEXT,
        }
        record |= {"thoughts": [], "tokens": tokens, "model": MODEL}
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        with transcript.open("ab", buffering=0) as file:
            file.write(line)
        self.written += len(line)
        project = transcript.relative_to(self._tmp).parts[0]
        usage = Usage(*map(add, self._truth.usage.get((project, MODEL), Usage()), used))
        self._truth.usage[project, MODEL] = usage
        series = f'gemini_cli_turns_total{{model="{MODEL}",project="{project}"}}'
        return series, usage.turns
