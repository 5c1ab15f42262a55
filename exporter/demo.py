"""An invented Gemini CLI home whose usage is known exactly, for tests, benchmarks and the demo.

A conversation is played as the sequence of writes that Gemini CLI makes. `write_home` makes all of
them at once; a live home makes each one when its time has come. Shapes and key order are those of
the released program: 0.61 for JSONL, 0.37 for JSON. All follows from the plan, byte for byte.
"""

import hashlib
import json
import os
import re
import time
from bisect import bisect_left
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from itertools import accumulate
from operator import add
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple

import orjson

Format = Literal["jsonl", "json"]
Record = dict[str, Any]
Outcomes = tuple[tuple[str, "Calls"], ...]

MODELS = {
    "gemini-2.5-pro": 24,
    "gemini-3.1-pro-preview": 20,
    "gemini-2.5-flash": 20,
    "gemini-3-flash-preview": 16,
    "gemini-3.5-flash": 14,
    "gemini-2.5-flash-lite": 6,
}
"""The models of the home and how often a session chooses each."""

_TOOLS = {
    "read_file": ("ReadFile", 30),
    "run_shell_command": ("Shell", 28),
    "replace": ("Edit", 18),
    "grep_search": ("SearchText", 11),
    "glob": ("FindFiles", 7),
    "google_web_search": ("GoogleSearch", 3),
    "mcp_github_get_issue": ("get_issue (github MCP Server)", 3),
}
_BASES = ("harbor-api", "Tide Watch", "atlas.web", "Café Menü", "billing_jobs", "infra", "docs")
_NOUNS = ("parcel", "route", "tariff", "berth", "crane", "vessel", "docket", "ramp", "ferry")
_VERBS = ("load", "merge", "check", "price", "pack", "hoist", "clear", "weigh", "assign", "sort")
_CODE = (
    "def {v}_{n}({m}: {M}, *, limit: int = {i}) -> list[{M}]:",
    '    rows = await db.fetch("select * from {n} where {m}_id = $1", {m}.id)  # {v} once',
    "export const {v}{M} = ({n}: {M}[]) => {n}.filter((it) => it.{m} > {i}).map(String);",
    '\tif err := s.{n}.{v}(ctx, "{m}\\n"); err != nil {{ return fmt.Errorf("{v} {n}: %w", err) }}',
    "src/{n}/{m}.ts:{i}:{j} - error TS2345: Argument of type '{M}' is not assignable.",
    "\x1b[32mPASS\x1b[0m tests/test_{n}.py::test_{v}_{m}[{i}] ({j} ms)",
    "C:\\Users\\ana\\{n}\\{m}_{i}.log  │ {j} kB │ geändert — 完了 ✅",
    '{{"id":"{i}","type":"gemini","tokens":{{"input":{i},"output":{j},"total":{i}}},"model":"{n}"}}',
    "  - {{ name: {n}, image: images.test/{m}:{j}, args: [--{v}, '{i}'] }}",
    "+++ b/src/{n}/{v}.py\t@@ -{i},{j} +{i},{j} @@ class {M}({m}.Base):",
    "",
)
_PROSE = (
    "The {n} handler asks the {m} service twice; the second answer is “stale” — I keep the first.",
    "`{v}_{n}` fails when the {m} list is empty, so I added a guard and a test for it.",
    "Next I will {v} the {n} table and compare it with the {m} export from line {i}.",
    "Größe und Anzahl stimmen: {i} × {j} entries in `src/{n}/{m}.py` 🎉.",
    "There is no caller of `{v}{M}` outside of `{n}`, removing it is safe.",
)
_PROMPTS = (
    "Why does the {n} test fail on a clean checkout?",
    "Please {v} the {n} before each {m} is written, and add a test.",
    "Refactor src/{n}/{m}.py: it is too long, split it — but keep the public names.",
    "What happens when {i} {n}s arrive at once? Show me the code path.",
    "Räum bitte das Modul {n} auf und erkläre, was {v} dort tut.",
)
_CONTEXT_ID = hashlib.blake2s(b"session_context", digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Plan:
    """What home to invent: `turns` in all, spread over `sessions` main and `subagents` more files.

    Nothing in it is dated later than `end` (aware), and most sessions start in the `days` before
    it. A turn takes about `turn_bytes` of its transcript. Raises ValueError if there are fewer than
    one session a project or six turns a file, or more subagents than sessions.
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

    def __post_init__(self) -> None:
        if not 1 <= self.projects <= self.sessions:
            raise ValueError("a plan needs a session for each of at least one project")
        if not 0 <= self.subagents <= self.sessions:
            raise ValueError("a plan needs a session for each subagent")
        if self.turns < 6 * (self.sessions + self.subagents):
            raise ValueError("a plan needs at least six turns a file")
        if self.end.tzinfo is None:
            raise ValueError("a plan needs a time zone for its end")


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


class Project:
    """A project folder: its path, the slug that Gemini CLI files it under, and its hash."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.slug = re.sub("[^a-z0-9]+", "-", root.rpartition("/")[2].lower()).strip("-")
        self.hash = hashlib.sha256(root.encode()).hexdigest()


class _Text:
    """Invented lines, escaped for JSON once: a text is a slice of them and costs one copy."""

    def __init__(self, templates: tuple[str, ...], size: int, end: str) -> None:
        rng, lines = Random(size), list[bytes]()
        while size > 0:
            line = json.dumps(_fill(rng, rng.choice(templates)) + end, ensure_ascii=False)
            lines.append(line[1:-1].encode())
            size -= len(lines[-1])
        self._bytes, self._ends = b"".join(lines), list(accumulate(map(len, lines)))

    def cut(self, rng: Random, size: float) -> bytes:
        """Some whole lines, about `size` bytes of them, ready to stand inside a JSON string."""
        room = max(1.0, len(self._bytes) - size - 1_000)
        begin = self._ends[bisect_left(self._ends, rng.random() * room)]
        return self._bytes[begin : self._ends[bisect_left(self._ends, begin + size)]]


def _scene(number: int) -> dict[str, object]:
    noun, other = (_NOUNS[number // step % len(_NOUNS)] for step in (1, 13))
    words = {"n": noun, "m": other, "M": other.title(), "v": _VERBS[number % len(_VERBS)]}
    return {**words, "i": number * 7 % 4_999, "j": number % 89}


_SCENES = [_scene(number) for number in range(1, 1_000)]


def _fill(rng: Random, template: str) -> str:
    """The template with words and numbers; one draw, since every text passes through here."""
    return template.format_map(_SCENES[int(rng.random() * len(_SCENES))])


@cache
def _texts() -> tuple[_Text, _Text]:
    """Tool output and prose, made once a process and the same in every process."""
    return _Text(_CODE, 600_000, "\n"), _Text(_PROSE, 60_000, " ")


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
        self._code, self._prose = _texts()
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
            yield self._write(message, usage=_usage(message["tokens"]))
            yield from self._touch()
            if not rounds and not self.parent:
                self._history.append(message)
                yield from self._leap()
                continue
            if index in self.agents:
                calls = [(yield from self._delegate(self.agents[index]))]
            elif last:
                calls = [self._report(f"{self.id}#{index}-0")]
            else:
                calls = self._calls(index)
            message = message | {"toolCalls": calls}
            self._history.append(message)
            yield self._write(message, calls=tuple(_outcome(call) for call in calls))
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
        now, kind = _iso(self.now), "subagent" if self.parent else "main"
        header = {"sessionId": self.id, "projectHash": self.project.hash, "startTime": now}
        header |= {"lastUpdated": now, "kind": kind}
        return header | {"directories": [self.project.root]} if self.parent else header

    def _greeting(self) -> Record:
        text = (
            f"<session_context>\nThis is the Gemini CLI. Today is {_iso(self.now)[:10]}.\n"
            f"- **Workspace Directories:**\n  - {self.project.root}\n{self.project.root}/\n"
            "├───README.md\n├───src/\n└───tests/\n</session_context>"
        )
        return self._record("user", [{"text": text}]) | {"id": _CONTEXT_ID}

    def _prompt(self) -> str:
        self._tick(4, 70)
        return _fill(self.rng, self.rng.choice(_PROMPTS))

    def _message(self, answer: bool) -> Record:
        """The model's next reply as it is first written: its tokens are known, no tool has run."""
        rng = self.rng
        self._tick(2, 16)
        if rng.random() < 0.01:
            self._model = self._choose_model()
        speaks = answer or rng.random() < 0.5
        content = self._prose.cut(rng, rng.expovariate(1 / 700)) if speaks else b""
        thoughts = []
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            about = {"subject": _fill(rng, "Checking the {n}"), "description": self._quote(300)}
            thoughts.append(about | {"timestamp": _iso(self.now)})
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
        return self._record("gemini", _quoted(content) if content else "") | spent

    def _calls(self, turn: int) -> list[Record]:
        """One to three finished tool calls of one message; some fail, a few are refused."""
        self._tick(0.2, 9)
        weights, calls = [weight for _, weight in _TOOLS.values()], []
        for index in range(self.rng.choice((1, 1, 1, 1, 2, 3))):
            name = self.rng.choices(list(_TOOLS), weights)[0]
            call = f"{name}_{self.now}_{index}"
            if self._jsonl:
                call = f"{self.id}#{turn}-{index}" if self.parent else f"{name}__{call}"
            args, about, told, shown = self._work(name)
            chances = (91, 8, 0 if self.parent else 1)
            status = self.rng.choices(("success", "error", "cancelled"), chances)[0]
            if status == "error":
                shown = "File not found."
                about = "Reads and returns the content of one file, in parts if it is long."
            calls.append(
                self._call(call, name, args, told, status)
                | ({} if status == "cancelled" else {"resultDisplay": shown})
                | {"description": about, "displayName": _TOOLS[name][0]}
                | {"renderOutputAsMarkdown": name != "run_shell_command"}
            )
        return calls

    def _work(self, name: str) -> tuple[Record, str, Any, Any]:
        """The arguments of a tool, in short, what it tells the model and what a person sees."""
        rng, path = self.rng, _fill(self.rng, "src/{n}/{v}_{m}.py")
        file = f"{self.project.root}/{path}"
        text = self._code.cut(rng, min(300_000.0, rng.lognormvariate(-0.72, 1.2) * self.output))
        shown = _quoted(text)
        match name:
            case "read_file":
                return {"file_path": file}, path, shown, ""
            case "run_shell_command":
                command = _fill(rng, "pytest -q tests/test_{n}.py -k {v} --maxfail {j}")
                told = b"Output: %b\\nProcess Group PGID: %d" % (text, rng.randrange(2_000, 90_000))
                if self._jsonl:
                    told = b"<untrusted_context>\\n%b\\n</untrusted_context>" % told
                asked = {"command": command, "description": "Run the tests"}
                return asked, command, _quoted(told), shown
            case "replace":
                new = _quoted(self._code.cut(rng, len(text) / 20))
                args: Record = {"file_path": file, "instruction": _fill(rng, "Guard the {n}")}
                diff = {"fileDiff": new, "fileName": path.rpartition("/")[2], "filePath": file}
                diff |= {"originalContent": shown, "newContent": shown}
                args |= {"old_string": "pass", "new_string": new}
                return args, path, f"Successfully modified file: {file}", diff
            case _:
                query = _fill(rng, "{v} {n} with {m}")
                return {"query": query}, query, shown, _fill(rng, "Found {j} results.")

    def _call(self, call: str, name: str, args: Record, told: Any, status: str) -> Record:
        """The part that finished calls of all tools have in common."""
        response: Record = {"output": told}
        if status == "error":
            response = {"error": f"File not found: {self.project.root}/src"}
        elif status == "cancelled":
            response = {"error": "[Operation Cancelled] Reason: User denied execution."}
        result = {"functionResponse": {"id": call, "name": name, "response": response}}
        done = {"result": [result], "status": status, "timestamp": _iso(self.now)}
        return {"id": call, "name": name, "args": args} | done

    def _report(self, call: str) -> Record:
        """The call by which a subagent ends."""
        told = "Output submitted and task completed."
        done = self._call(call, "complete_task", {"report": self._quote(900)}, told, "success")
        shown = {"resultDisplay": told, "description": told, "displayName": "Complete Task"}
        return done | shown | {"renderOutputAsMarkdown": True}

    def _delegate(self, turns: int) -> Generator[Write, None, Record]:
        """Play a subagent to its end and return the finished call of the tool that ran it."""
        rng, name = Random(self.rng.getrandbits(64)), "codebase_investigator"
        start = self.now + 90
        agent = Chat(rng, self._era, self.project, start, turns, self.output, {}, self.id)
        yield from agent.writes()
        self.now = agent.now
        report, task = self._quote(1_200), _fill(rng, "Find where a {n} becomes a {m}")
        if self._jsonl:
            tool, args = "invoke_agent", {"agent_name": name, "prompt": task}
            call, identity = f"{tool}__{tool}_{self.now}_0", {"agentId": agent.id}
            label = "Invoke Subagent"
        else:
            tool, args = name, {"objective": task}
            call, identity = f"{tool}_{self.now}_0", {}
            label = "Codebase Investigator Agent"
        shown = {"isSubagentProgress": True, "agentName": name, "recentActivity": []}
        shown |= {"state": "completed", "result": report, "terminateReason": "GOAL"}
        about = {"description": f"Delegating to agent '{name}'", "displayName": label}
        done = self._call(call, tool, args, report, "success") | identity
        return done | {"resultDisplay": shown} | about | {"renderOutputAsMarkdown": True}

    def _leap(self) -> Iterator[Write]:
        """Between two prompts: compress a long context, or now and then go back a few prompts."""
        history = self._history
        prompts = [index for index, record in enumerate(history) if _is_prompt(record)]
        if self._context > self._limit:
            self._context, self._cacheable = self._floor, 0
            thanks = [{"text": "Got it. Thanks for the additional context!"}]
            self._history = [self._record("user", [{"text": self._quote(3_000)}])]
            self._history.append(self._record("gemini", thanks))
            if self._jsonl:
                yield self._write({"$set": {"sessionId": self.id}})
                yield self._checkpoint([self._greeting(), *self._history])
            yield from self._say("info", "")
        elif self._jsonl and len(prompts) > 2 and len(history) < 80 and self.rng.random() < 0.03:
            yield self._write({"$rewindTo": history[prompts[-2]]["id"]})
            del history[prompts[-2] :]
            self._context = max(self._floor, self._context * 2 // 3)
            self._cacheable = min(self._cacheable, self._context)
            yield self._checkpoint([_remembered(record) for record in history])

    def _say(self, kind: str, content: Any) -> Iterator[Write]:
        """A record that does not come from the model."""
        record = self._record(kind, content)
        if kind == "user":
            self._history.append(record)
        yield self._write(record)
        yield from self._touch()

    def _checkpoint(self, messages: list[Record]) -> Write:
        return self._write({"$set": {"messages": messages, "lastUpdated": _iso(self.now)}})

    def _touch(self) -> Iterator[Write]:
        if self._jsonl:
            yield self._write({"$set": {"lastUpdated": _iso(self.now)}})

    def _record(self, kind: str, content: Any) -> Record:
        return {"id": self._uuid(), "timestamp": _iso(self.now), "type": kind, "content": content}

    def _write(self, record: Record, usage: Usage | None = None, calls: Outcomes = ()) -> Write:
        return Write(self.now, self.path, record, self._model, usage, calls)

    def _quote(self, size: float) -> orjson.Fragment:
        return _quoted(self._prose.cut(self.rng, size))

    def _choose_model(self) -> str:
        return self.rng.choices(list(MODELS), list(MODELS.values()))[0]

    def _tick(self, least: float, most: float) -> None:
        self.now += int(self.rng.uniform(least, most) * 1_000)

    def _uuid(self) -> str:
        digits = f"{self.rng.getrandbits(128):032x}"
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


def chats(plan: Plan) -> Iterator[Chat]:
    """The main conversations of a plan, each with its project, start, length and subagents."""
    rng = Random(plan.seed)
    bases = [_BASES[k % len(_BASES)] + f" {k}" * (k >= len(_BASES)) for k in range(plan.projects)]
    projects = [Project(f"/home/ana/src/{base}") for base in bases]
    longest = min(14, (plan.turns - 5 * plan.sessions) // max(1, plan.subagents))
    agents = [rng.randint(4, longest) for _ in range(plan.subagents)]
    lengths = _shares(rng, plan.turns - sum(agents), plan.sessions, least=4)
    slots = [(chat, turn) for chat, length in enumerate(lengths) for turn in range(length - 1)]
    taken = dict(zip(rng.sample(slots, plan.subagents), agents, strict=True))
    # Measured: what a turn takes beside its tools' output, and how often that output is repeated.
    fixed, copies = (3_100, 2.42) if plan.format == "jsonl" else (2_400, 1.45)
    output = max(100.0, (plan.turn_bytes - fixed) / copies)
    for number, length in enumerate(lengths):
        called = {turn: turns for (chat, turn), turns in taken.items() if chat == number}
        project = projects[number] if number < plan.projects else rng.choice(projects)
        # A turn takes less than 100 s, so nothing is dated after the end of the plan.
        latest = plan.end - timedelta(seconds=100 * (length + sum(called.values())))
        wished = plan.end - timedelta(days=rng.random() * plan.days)
        wished = wished.replace(hour=min(23, max(0, round(rng.gauss(13, 3.5)))))
        start = int(min(wished, latest).timestamp() * 1_000)
        own = Random(rng.getrandbits(64))
        yield Chat(own, plan.format, project, start, length, output, called)


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
    for record in (write.record for write in writes if _is_prompt(write.record)):
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
    header |= {"lastUpdated": _iso(writes[-1].at), "messages": list(messages.values())}
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


def _quoted(text: bytes) -> orjson.Fragment:
    return orjson.Fragment(b'"%b"' % text)


def _iso(at: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at // 1000)) + f".{at % 1000:03}Z"


def _is_prompt(record: Record) -> bool:
    """Whether a person typed it: tools' answers are `user` records too."""
    return record.get("type") == "user" and "text" in record["content"][0]


def _usage(tokens: Record) -> Usage:
    """The disjoint kinds of a recorded `tokens` object, whose `input` includes what was cached."""
    fresh = tokens["input"] - tokens["cached"]
    return Usage(1, fresh, *(tokens[kind] for kind in ("cached", "output", "thoughts", "tool")))


def _outcome(call: Record) -> tuple[str, Calls]:
    status = call["status"]
    return call["name"], Calls(1, int(status == "error"), int(status == "cancelled"))


def _remembered(record: Record) -> Record:
    """A message as a checkpoint repeats it: same id and tokens, its calls also in the content."""
    if "model" not in record:
        return record
    parts: list[Record] = [{"text": record["content"]}] if record["content"] else []
    for call in record.get("toolCalls", ()):
        asked = {"name": call["name"], "args": call["args"], "id": call["id"]}
        parts.append({"functionCall": asked})
    return record | {"content": parts}
