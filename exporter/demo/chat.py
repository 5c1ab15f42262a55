"""A conversation, played as the sequence of writes that Gemini CLI makes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Generator, Iterator, Mapping
from itertools import accumulate
from random import Random
from typing import Any

import orjson

from .plan import Format, Project
from .records import Record, is_prompt, iso, remembered
from .text import fill, prose, quoted
from .tools import Tools
from .truth import Outcomes, Usage, Write, outcome_of, usage_of

MODELS = {
    "gemini-2.5-pro": 24,
    "gemini-3.1-pro-preview": 20,
    "gemini-2.5-flash": 20,
    "gemini-3-flash-preview": 16,
    "gemini-3.5-flash": 14,
    "gemini-2.5-flash-lite": 6,
}
"""The models of the home and how often a session chooses each."""

_NAMES = list(MODELS)
_ODDS = list(accumulate(MODELS.values()))
_PROMPTS = (
    "Why does the {n} test fail on a clean checkout?",
    "Please {v} the {n} before each {m} is written, and add a test.",
    "Refactor src/{n}/{m}.py: it is too long, split it — but keep the public names.",
    "What happens when {i} {n}s arrive at once? Show me the code path.",
    "Räum bitte das Modul {n} auf und erkläre, was {v} dort tut.",
)
_CONTEXT_ID = hashlib.blake2s(b"session_context", digest_size=16).hexdigest()


class Chat:
    """One conversation, played from `start` (ms since the epoch), with the subagents it starts.

    `agents` maps the index of a turn to the number of turns of the subagent that it calls. A tool's
    output has about `output` bytes on average. `now` is the time of the latest write.
    """

    def __init__(
        self,
        rng: Random,
        era: Format,
        project: Project,
        start: int,
        turns: int,
        output: float,
        agents: Mapping[int, int],
        parent: str = "",
    ) -> None:
        self.rng, self.project, self.now, self.turns = rng, project, start, turns
        self.output, self.agents, self.parent = output, agents, parent
        self._era, self._jsonl = era, era == "jsonl"
        self.id = self._uuid() if self._jsonl or not parent else self._uuid()[:6]
        minute = time.strftime("%Y-%m-%dT%H-%M", time.gmtime(start // 1000))
        name = f"{parent}/{self.id}" if parent else f"session-{minute}-{self.id[:8]}"
        self.path = f"tmp/{project.slug}/chats/{name}.{era}"
        self._tools = Tools(rng, project.root, output, self.id, self._jsonl, bool(parent))
        self._model = self._choose_model()
        self._floor = self._context = rng.randrange(8_000, 14_000)
        self._limit = rng.choice((60_000, 90_000, 120_000, 160_000, 240_000, 420_000))
        self._cacheable = 0
        self._history: list[Record] = []

    def writes(self) -> Iterator[Write]:
        """Play the whole conversation, in order of time; the subagents' writes stand between."""
        yield self._write(self._header())
        if self._jsonl and not self.parent:
            yield self._checkpoint([self._greeting()])
        rounds = 0
        for index in range(self.turns):
            last = index == self.turns - 1
            if not rounds:
                yield from self._say("user", [{"text": self._prompt()}])
                rounds = self.turns if self.parent else 1 + int(self.rng.expovariate(0.28))
            rounds = 0 if last else max(rounds - 1, index in self.agents)
            message = self._message(answer=not rounds)
            yield self._write(message, usage=usage_of(message["tokens"]))
            yield from self._touch()
            if not rounds and not self.parent:
                self._history.append(message)
                yield from self._leap()
                continue
            if index in self.agents:
                calls = [(yield from self._delegate(self.agents[index]))]
            elif last:
                calls = [self._tools.report(index, self.now)]
            else:
                self._tick(0.2, 9)
                calls = self._tools.calls(index, self.now)
            message = message | {"toolCalls": calls}
            self._history.append(message)
            yield self._write(message, calls=tuple(outcome_of(call) for call in calls))
            if any(call["status"] == "cancelled" for call in calls):
                rounds = 0
                yield from self._say("info", "Request cancelled.")
            elif not last:
                results = [call["result"][0] for call in calls]
                self._context += min(10_000, len(orjson.dumps(results)) // 4)
                if self._jsonl:
                    yield from self._say("user", results)
        if self.parent:
            yield self._write({"$set": {"summary": "The call chain is known."}})

    def _header(self) -> Record:
        now, kind = iso(self.now), "subagent" if self.parent else "main"
        header = {"sessionId": self.id, "projectHash": self.project.hash, "startTime": now}
        header |= {"lastUpdated": now, "kind": kind}
        return header | {"directories": [self.project.root]} if self.parent else header

    def _greeting(self) -> Record:
        text = (
            f"<session_context>\nThis is the Gemini CLI. Today is {iso(self.now)[:10]}.\n"
            f"- **Workspace Directories:**\n  - {self.project.root}\n{self.project.root}/\n"
            "├───README.md\n├───src/\n└───tests/\n</session_context>"
        )
        return self._record("user", [{"text": text}]) | {"id": _CONTEXT_ID}

    def _prompt(self) -> str:
        self._tick(4, 70)
        return fill(self.rng, self.rng.choice(_PROMPTS))

    def _message(self, answer: bool) -> Record:
        """The model's next reply as it is first written: its tokens are known, no tool has run."""
        rng = self.rng
        self._tick(2, 16)
        if rng.random() < 0.01:
            self._model = self._choose_model()
        speaks = answer or rng.random() < 0.5
        content = prose().cut(rng, rng.expovariate(1 / 700)) if speaks else b""
        thoughts = []
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            subject = fill(rng, "Checking the {n}")
            about = {"subject": subject, "description": prose().quote(rng, 300)}
            thoughts.append(about | {"timestamp": iso(self.now)})
        hit = rng.uniform(0.75, 0.99) if rng.random() < 0.92 else 0.0
        tokens = {
            "input": self._context,
            "output": rng.randrange(15, 160) + len(content) // 4,
            "cached": int(self._cacheable * hit),
            "thoughts": rng.randrange(60, 1_800) if thoughts else 0,
            "tool": rng.randrange(20, 400) if rng.random() < 0.01 else 0,
        }
        tokens["total"] = sum(tokens.values()) - tokens["cached"]
        self._cacheable = self._context
        self._context += tokens["output"] + tokens["thoughts"]
        spent = {"thoughts": thoughts, "tokens": tokens, "model": self._model}
        return self._record("gemini", quoted(content) if content else "") | spent

    def _delegate(self, turns: int) -> Generator[Write, None, Record]:
        """Play a subagent to its end and return the finished call of the tool that ran it."""
        rng, start = Random(self.rng.getrandbits(64)), self.now + 90
        agent = Chat(rng, self._era, self.project, start, turns, self.output, {}, self.id)
        yield from agent.writes()
        self.now = agent.now
        task = fill(rng, "Find where a {n} becomes a {m}")
        return self._tools.delegation(agent.id, task, self.now)

    def _leap(self) -> Iterator[Write]:
        """Between two prompts: compress a long context, or now and then go back a few prompts."""
        history = self._history
        if self._context > self._limit:
            self._context, self._cacheable = self._floor, 0
            thanks = [{"text": "Got it. Thanks for the additional context!"}]
            summary = [{"text": prose().quote(self.rng, 3_000)}]
            self._history = [self._record("user", summary), self._record("gemini", thanks)]
            if self._jsonl:
                yield self._write({"$set": {"sessionId": self.id}})
                yield self._checkpoint([self._greeting(), *self._history])
            yield from self._say("info", "")
        elif self._jsonl and len(history) < 80:
            prompts = [index for index, record in enumerate(history) if is_prompt(record)]
            if len(prompts) > 2 and self.rng.random() < 0.03:
                yield self._write({"$rewindTo": history[prompts[-2]]["id"]})
                del history[prompts[-2] :]
                self._context = max(self._floor, self._context * 2 // 3)
                self._cacheable = min(self._cacheable, self._context)
                yield self._checkpoint([remembered(record) for record in history])

    def _say(self, kind: str, content: Any) -> Iterator[Write]:
        """A record that does not come from the model."""
        record = self._record(kind, content)
        if kind == "user":
            self._history.append(record)
        yield self._write(record)
        yield from self._touch()

    def _checkpoint(self, messages: list[Record]) -> Write:
        return self._write({"$set": {"messages": messages, "lastUpdated": iso(self.now)}})

    def _touch(self) -> Iterator[Write]:
        if self._jsonl:
            yield self._write({"$set": {"lastUpdated": iso(self.now)}})

    def _record(self, kind: str, content: Any) -> Record:
        return {"id": self._uuid(), "timestamp": iso(self.now), "type": kind, "content": content}

    def _write(self, record: Record, usage: Usage | None = None, calls: Outcomes = ()) -> Write:
        return Write(self.now, self.path, record, self._model, usage, calls)

    def _choose_model(self) -> str:
        return self.rng.choices(_NAMES, cum_weights=_ODDS)[0]

    def _tick(self, least: float, most: float) -> None:
        self.now += int(self.rng.uniform(least, most) * 1_000)

    def _uuid(self) -> str:
        digits = f"{self.rng.getrandbits(128):032x}"
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"
