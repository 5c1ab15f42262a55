"""The invented home: reproducible, shaped like the real thing, and counted right by its maker."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from exporter.demo import Calls, Format, Plan, Truth, Usage, chats, write_home

END = datetime(2026, 10, 1, 18, 30, tzinfo=UTC)
SMALL = Plan(end=END, projects=4, sessions=12, subagents=4, turns=1_200, turn_bytes=4_000)

MESSAGE = ("id", "timestamp", "type", "content")
REPLY = (*MESSAGE, "thoughts", "tokens", "model")
CALL = ("id", "name", "args", "result", "status", "timestamp")
CALL_END = ("description", "displayName", "renderOutputAsMarkdown")


class Home:
    """A written home, its plan and its truth."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path, self.plan, self.truth = path, plan, write_home(path, plan)
        self.transcripts = sorted(path.glob(".gemini/tmp/*/chats/**/*.json*"))

    def messages(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every copy of every message with the slug of its project, checkpoints included."""
        for path in self.transcripts:
            slug = path.relative_to(self.path / ".gemini/tmp").parts[0]
            for record in records(path):
                inner = record.get("$set", record).get("messages", [])
                for message in [record] * ("type" in record) + inner:
                    yield slug, message


def records(path: Path) -> list[dict[str, Any]]:
    text = path.read_text("utf-8")
    return (
        [json.loads(text)] if path.suffix == ".json" else list(map(json.loads, text.splitlines()))
    )


@pytest.fixture(scope="module", params=["jsonl", "json"])
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Home:
    plan = replace(SMALL, format=request.param)
    return Home(tmp_path_factory.mktemp(request.param), plan)


@pytest.fixture(scope="module")
def jsonl(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("lines"), SMALL)


def contents(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns * dated(path))
        for path in root.rglob("*")
        if path.is_file()
    }


def dated(path: Path) -> bool:
    return "chats" in path.parts


def recount(home: Home) -> Truth:
    """What an independent reader finds: each message once, each call with its last status."""
    truth, turns, calls = Truth(), dict[str, tuple[str, str]](), dict[tuple[str, str], Any]()
    for slug, message in home.messages():
        tokens = message.get("tokens")
        if tokens and message["id"] not in turns:
            turns[message["id"]] = key = (slug, message["model"])
            assert tokens["total"] == sum(tokens.values()) - tokens["cached"] - tokens["total"]
            fresh = tokens["input"] - tokens["cached"]
            kinds = [fresh, *(tokens[kind] for kind in ("cached", "output", "thoughts", "tool"))]
            before = truth.usage.get(key, Usage())
            truth.usage[key] = Usage(*(a + b for a, b in zip(before, [1, *kinds], strict=True)))
        for call in message.get("toolCalls", ()):
            where = (slug, message["model"], call["name"])
            calls[message["id"], call["id"]] = (where, call["status"])
    for where, status in calls.values():
        total, errors, cancelled = truth.calls.get(where, Calls())
        truth.calls[where] = Calls(
            total + 1, errors + (status == "error"), cancelled + (status == "cancelled")
        )
    mains = [path for path in home.transcripts if path.parent.name == "chats"]
    truth.sessions = dict(Counter(path.parent.parent.name for path in mains))
    truth.files = len(home.transcripts)
    truth.size = sum(path.stat().st_size for path in home.transcripts)
    return truth


def test_the_same_plan_gives_the_same_bytes(home: Home, tmp_path: Path) -> None:
    assert write_home(tmp_path, home.plan) == home.truth
    assert contents(tmp_path) == contents(home.path)


def test_another_seed_gives_another_home(jsonl: Home, tmp_path: Path) -> None:
    assert write_home(tmp_path, replace(SMALL, seed=2)) != jsonl.truth


def test_the_truth_is_what_an_independent_reader_counts(home: Home) -> None:
    assert recount(home) == home.truth


def test_a_plan_is_kept_to_the_turn_and_the_file(home: Home) -> None:
    assert home.truth.total.turns == home.plan.turns
    assert home.truth.files == home.plan.sessions + home.plan.subagents
    assert len(home.truth.sessions) == home.plan.projects
    assert sum(home.truth.sessions.values()) == home.plan.sessions


def test_the_figures_are_those_of_a_working_day(home: Home) -> None:
    turns, fresh, cached, output, thoughts, tool = home.truth.total
    calls, errors, cancelled = (sum(kind) for kind in zip(*home.truth.calls.values(), strict=True))
    assert 0.5 < cached / (cached + fresh) < 0.95
    assert 0 < tool < output < thoughts < cached
    assert 0.5 < calls / turns < 1.5
    assert 0.05 < errors / calls < 0.11
    assert 0 < cancelled < errors


@pytest.mark.parametrize("era", ["jsonl", "json"])
def test_turns_of_the_usual_size_bring_some_prompts_to_the_higher_price(
    era: Format, tmp_path: Path
) -> None:
    home = Home(tmp_path, replace(SMALL, format=era, turn_bytes=20_000))
    tokens = {message["id"]: message.get("tokens") for _, message in home.messages()}
    long = [used for used in tokens.values() if used and used["input"] > 200_000]
    assert 0.01 < len(long) / home.plan.turns < 0.3
    assert home.truth.size / home.plan.turns == pytest.approx(20_000, rel=0.15)


def test_the_bytes_are_those_of_javascript(home: Home) -> None:
    """JSON.stringify leaves non-ASCII text as it is and has no spaces, or two as indentation."""
    for path in home.transcripts:
        text = path.read_bytes().decode()
        if path.suffix == ".json":
            assert text == json.dumps(json.loads(text), ensure_ascii=False, indent=2)
        else:
            lines = [
                json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"
                for record in records(path)
            ]
            assert text == "".join(lines)


def test_the_text_is_hard_to_read_carelessly(jsonl: Home) -> None:
    text = "".join(path.read_text("utf-8") for path in jsonl.transcripts)
    for trap in ("✅", "é", "\\u001b[32m", "\\\\Users\\\\", '\\"type\\":\\"gemini\\"'):
        assert trap in text


def test_jsonl_keys_stand_in_the_order_of_the_real_transcripts(jsonl: Home) -> None:
    header = ("sessionId", "projectHash", "startTime", "lastUpdated", "kind")
    allowed = {
        ("header", header),
        ("header", (*header, "directories")),
        ("user", MESSAGE),
        ("info", MESSAGE),
        ("gemini", REPLY),
        ("gemini", (*REPLY, "toolCalls")),
        ("$set", ("lastUpdated",)),
        ("$set", ("messages", "lastUpdated")),
        ("$set", ("sessionId",)),
        ("$set", ("summary",)),
        ("$rewindTo", ()),
    }
    found = set()
    for path in jsonl.transcripts:
        for index, record in enumerate(records(path)):
            kind = record.get("type", next(iter(record))) if index else "header"
            fields = tuple(record.get("$set", record)) if kind != "$rewindTo" else ()
            found.add((kind, fields))
    assert found == allowed


def test_json_keys_stand_in_the_order_of_the_real_transcripts(tmp_path: Path) -> None:
    home = Home(tmp_path, replace(SMALL, format="json"))
    header = ("sessionId", "projectHash", "startTime", "lastUpdated", "messages")
    documents = [records(path)[0] for path in home.transcripts]
    assert {tuple(document) for document in documents} == {
        (*header, "kind"),
        (*header, "directories", "kind", "summary"),
    }
    assert {
        (message["type"], tuple(message))
        for document in documents
        for message in document["messages"]
    } == {
        ("user", MESSAGE),
        ("info", MESSAGE),
        ("gemini", REPLY),
        ("gemini", (*REPLY, "toolCalls")),
    }


def test_call_keys_stand_in_the_order_of_the_real_transcripts(home: Home) -> None:
    found: dict[str, set[tuple[str, ...]]] = {}
    for _, message in home.messages():
        for call in message.get("toolCalls", ()):
            kind = "agent" if "agentId" in call else call["status"]
            found.setdefault(kind, set()).add(tuple(call))
    agent = {"agent": {(*CALL, "agentId", "resultDisplay", *CALL_END)}}
    assert found == {
        "success": {(*CALL, "resultDisplay", *CALL_END)},
        "error": {(*CALL, "resultDisplay", *CALL_END)},
        "cancelled": {(*CALL, *CALL_END)},
    } | (agent if home.plan.format == "jsonl" else {})


def test_a_reply_comes_with_its_tokens_and_again_with_its_tool_calls(jsonl: Home) -> None:
    lines = records(jsonl.transcripts[-1])
    written = [record for record in lines if record.get("type") == "gemini"]
    first = {record["id"]: record for record in reversed(written)}
    twice = [record for record in written if "toolCalls" in record]
    assert twice
    for record in twice:
        calls = record.pop("toolCalls")
        assert record == first[record["id"]]
        assert calls
        assert "toolCalls" not in first[record["id"]]


def test_a_user_record_repeats_what_the_tools_answered(jsonl: Home) -> None:
    lines = [record for record in records(jsonl.transcripts[-1]) if "type" in record]
    pairs = [
        (record["toolCalls"], following["content"])
        for record, following in pairwise(lines)
        if "toolCalls" in record and following["type"] == "user"
    ]
    assert pairs
    for calls, answers in pairs:
        assert [call["result"][0] for call in calls] == answers


def test_every_session_begins_with_the_same_context_message(jsonl: Home) -> None:
    mains = [records(path) for path in jsonl.transcripts if path.parent.name == "chats"]
    firsts = [lines[1]["$set"]["messages"][0] for lines in mains]
    assert len({message["id"] for message in firsts}) == 1
    assert all("<session_context>" in message["content"][0]["text"] for message in firsts)


def test_rewinds_are_followed_by_a_checkpoint_that_repeats_tokens(jsonl: Home) -> None:
    repeated = 0
    for path in jsonl.transcripts:
        lines = records(path)
        for line, following in pairwise(lines):
            if "$rewindTo" in line:
                kept = following["$set"]["messages"]
                assert line["$rewindTo"] not in {message["id"] for message in kept}
                repeated += sum(bool(message.get("tokens")) for message in kept)
    assert repeated > 0


def test_subagents_stand_below_the_session_that_called_them(home: Home) -> None:
    subagents = [path for path in home.transcripts if path.parent.name != "chats"]
    assert len(subagents) == home.plan.subagents
    for path in subagents:
        header = records(path)[0]
        assert (header["kind"], header["sessionId"]) == ("subagent", path.stem)
        assert list(path.parents[1].glob(f"session-*-{path.parent.name[:8]}{path.suffix}"))


def test_projects_can_be_named_from_the_files_beside_them(home: Home) -> None:
    root = home.path / ".gemini"
    known = json.loads((root / "projects.json").read_text("utf-8"))["projects"]
    assert set(known.values()) == set(home.truth.sessions)
    for path, slug in known.items():
        assert (root / "tmp" / slug / ".project_root").read_text("utf-8") == path
        assert (root / "history" / slug / ".project_root").read_text("utf-8") == path


def test_what_is_no_transcript_is_there_and_not_counted(home: Home) -> None:
    decoys = list(home.path.glob(".gemini/tmp/*/tool-outputs/*/*.jsonl"))
    logs = list(home.path.glob(".gemini/tmp/*/logs.json"))
    assert len(decoys) == len(logs) == home.plan.projects
    assert any(record.get("tokens") for path in decoys for record in records(path))


def test_nothing_is_dated_after_the_end_and_files_carry_the_time_of_their_last_write(
    home: Home,
) -> None:
    for chat in chats(home.plan):
        last, times = dict[str, int](), []
        for write in chat.writes():
            last[write.path] = write.at
            times.append(write.at)
        assert times == sorted(times)
        assert times[-1] <= END.timestamp() * 1_000
        for path, at in last.items():
            assert (home.path / ".gemini" / path).stat().st_mtime_ns == at * 1_000_000


def test_the_writes_of_a_chat_add_up_to_its_file_and_to_the_truth(jsonl: Home) -> None:
    """A live home appends the same lines one by one, and knows the truth after each."""
    truth, files = Truth(), dict[str, bytes]()
    for chat in chats(SMALL):
        for write in chat.writes():
            truth.add(chat.project.slug, write)
            files[write.path] = files.get(write.path, b"") + write.line
    assert (truth.usage, truth.calls) == (jsonl.truth.usage, jsonl.truth.calls)
    for path, content in files.items():
        assert (jsonl.path / ".gemini" / path).read_bytes() == content


@pytest.mark.parametrize(
    "change",
    [
        {"projects": 0},
        {"projects": 13},
        {"subagents": 13},
        {"subagents": -1},
        {"turns": 95},
        {"end": END.replace(tzinfo=None)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_an_impossible_plan_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"plan needs"):
        replace(SMALL, **change)


def test_the_smallest_plan_works(tmp_path: Path) -> None:
    truth = write_home(tmp_path, Plan(end=END, projects=1, sessions=1, subagents=1, turns=12))
    assert (truth.total.turns, truth.files) == (12, 2)
