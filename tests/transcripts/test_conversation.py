"""What the order of records means: echoes, repeated messages, sessions, models, times, calls."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.ledger.model import Batch, Project, Role, Status, call_key, message_key
from exporter.transcripts.conversation import Conversation, Given, Memory, Moment, Place
from exporter.transcripts.records import parse_document, parse_line
from exporter.transcripts.shapes import Reason
from tests.support import Home, dumps, gemini, header, home, millis, user
from tests.transcripts.test_counting import assert_never_falls

NOW = millis("2026-11-30T21:00:00+00:00")
WRITTEN = NOW - 1_000
"""What stands for the modification time of the file."""

MAIN = Place(Project("shop"), "filename", "")
CHILD = Place(Project("shop"), "filename", "parent-id")


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Home]:
    with home(tmp_path) as opened:
        yield opened


class Talk:
    """A conversation with what it has given so far; each call of `take` is one read of the file."""

    def __init__(self, place: Place = MAIN) -> None:
        self.batch = Batch()
        self.reasons: Counter[str] = Counter()
        self.memory = Memory()
        self._given: Given = {}
        self._place = place

    def _conversation(self) -> Conversation:
        moment = Moment(NOW, WRITTEN)
        return Conversation(self._place, self.memory, self._given, moment, self.batch, self.reasons)

    def take(self, *lines: Any) -> Talk:
        conversation = self._conversation()
        for line in lines:
            parsed = parse_line(dumps(line))
            if parsed.record is not None:
                conversation.message(parsed.record)
            elif parsed.header is not None:
                conversation.header(parsed.header)
        return self

    def document(self, *messages: Any, **facts: Any) -> Talk:
        parsed = parse_document(dumps({**facts, "messages": messages}))
        assert parsed.header is not None
        self._conversation().document(parsed.header)
        return self

    def restart(self) -> Talk:
        """Forget what is only kept to save work."""
        self._given = {}
        return self

    @property
    def ids(self) -> list[bytes]:
        return [turn.id for turn in self.batch.turns]

    @property
    def echoes(self) -> list[bytes | None]:
        return [turn.echo for turn in self.batch.turns]


def note(kind: str) -> dict[str, Any]:
    return {**user(f"{kind}-1"), "type": kind}


def first(id: str = "A", input: int = 100, output: int = 0, **more: Any) -> list[dict[str, Any]]:
    """Return the lines of a reply that gets its tokens later, from the next stream."""
    calls = more.pop("calls", None)
    return [gemini(id, None, calls=calls), gemini(id, input, output, calls=calls, **more)]


EARLIER = "2026-11-30T19:00:00.000Z"
CALL = [("c-1", "read_file", "success")]
BOTH = gemini("B", 100, 20, cached=40, thoughts=30, tool=5)

Sum = tuple[int, int, int, int, int]
"""Turns, prompt tokens without the server-side ones, output, thoughts, tool."""

ECHOES: dict[str, tuple[list[Any], Sum]] = {
    "seen without tokens": ([*first(thoughts=7), BOTH], (1, 100, 20, 30, 5)),
    "with tools": ([gemini("A", 100, 0, thoughts=7, calls=CALL), BOTH], (1, 100, 20, 30, 5)),
    "unset and with tools": ([*first(output=2, calls=CALL), BOTH], (1, 100, 20, 30, 5)),
    "tools arrive after its tokens": (
        [gemini("A", 100, 0), gemini("A", 100, 0, calls=CALL), BOTH],
        (1, 100, 20, 30, 5),
    ),
    "all parts equal": (
        [*first(output=20, cached=40, thoughts=30, tool=5), BOTH],
        (1, 100, 20, 30, 5),
    ),
    "neither unset nor with tools: an attempt and its retry": (
        [gemini("A", 100, 5), BOTH],
        (2, 200, 25, 30, 5),
    ),
    "user between": ([*first(), user(), BOTH], (2, 200, 20, 30, 5)),
    "user between null and tokens": (
        [first()[0], user(), first()[1], BOTH],
        (2, 200, 20, 30, 5),
    ),
    "notes between": (
        [*first(), note("info"), note("warning"), note("error"), BOTH],
        (1, 100, 20, 30, 5),
    ),
    "patch and second header between": (
        [*first(), {"$set": {"lastUpdated": "2026-11-30T20:00:00.000Z"}}, header(), BOTH],
        (1, 100, 20, 30, 5),
    ),
    "unknown type between": ([*first(), note("thought"), BOTH], (1, 100, 20, 30, 5)),
    "checkpoint between": ([*first(), {"$set": {"messages": [user()]}}, BOTH], (1, 100, 20, 30, 5)),
    "other input": ([*first(input=99), BOTH], (2, 199, 20, 30, 5)),
    "more output": ([*first(output=21), BOTH], (2, 200, 41, 30, 5)),
    "more cached": ([*first(cached=41), BOTH], (2, 200, 20, 30, 5)),
    "more thoughts": ([*first(thoughts=31), BOTH], (2, 200, 20, 61, 5)),
    "more tool": ([*first(tool=6), BOTH], (2, 200, 20, 30, 11)),
    "next reply without tokens: the first keeps its own": (
        [*first(output=9), gemini("B", None)],
        (1, 100, 9, 0, 0),
    ),
    "next reply without tokens is itself the echo of the one after it": (
        [*first(output=9), *first("B", 150, 1), gemini("C", 150, 4)],
        (2, 250, 13, 0, 0),
    ),
    "a reply that never had tokens and the one after it": (
        [gemini("A", None, calls=CALL), BOTH],
        (1, 100, 20, 30, 5),
    ),
    "a reply without tokens between ends the search": (
        [*first(output=9), gemini("B", None), gemini("C", 100, 10)],
        (2, 200, 19, 0, 0),
    ),
    "final reply is written again": (
        [*first(), BOTH, BOTH, {**BOTH, "toolCalls": gemini(calls=CALL)["toolCalls"]}],
        (1, 100, 20, 30, 5),
    ),
    "echo is written again after the final reply": (
        [*first(), BOTH, gemini("A", 100, 0, calls=CALL)],
        (1, 100, 20, 30, 5),
    ),
    "echo is repeated by a checkpoint": (
        [*first(), BOTH, {"$set": {"messages": [gemini("A", 100, 0), BOTH]}}],
        (1, 100, 20, 30, 5),
    ),
    "next prompt is larger": (
        [*first(calls=CALL), BOTH, gemini("C", 180, 3)],
        (2, 280, 23, 30, 5),
    ),
    "two echoes": (
        [*first(), BOTH, user(), *first("C", 300), gemini("D", 300, 8)],
        (2, 400, 28, 30, 5),
    ),
    "final reply has tools, next is larger": (
        [*first(), gemini("B", 100, 20, calls=CALL), gemini("C", 140, 30)],
        (2, 240, 50, 0, 0),
    ),
    "rewind between": ([*first(), {"$rewindTo": "u-0"}, BOTH], (1, 100, 20, 30, 5)),
}


def total(scratch: Home) -> Sum:
    pairs = scratch.ledger.snapshot().pairs.values()
    tokens = [pair.tokens for pair in pairs]
    return (
        scratch.turns,
        sum(used.input + used.cached for used in tokens),
        sum(used.output for used in tokens),
        sum(used.thoughts for used in tokens),
        sum(used.tool for used in tokens),
    )


echoes = pytest.mark.parametrize(("lines", "expected"), ECHOES.values(), ids=list(ECHOES))


@echoes
def test_an_echo_counts_with_its_final_reply(
    scratch: Home, lines: list[Any], expected: Sum
) -> None:
    scratch.write(header(), *lines)
    scratch.scan()
    assert total(scratch) == expected


@echoes
def test_an_echo_counts_the_same_with_a_restart_between_any_two_lines(
    scratch: Home, lines: list[Any], expected: Sum
) -> None:
    before = scratch.scan()
    for line in lines:
        scratch.write(line)
        after = scratch.scan()
        assert_never_falls(before, after)
        before = after
        scratch.restart()
    assert total(scratch) == expected


@echoes
def test_an_echo_counts_the_same_in_one_run_that_looks_at_every_line(
    scratch: Home, lines: list[Any], expected: Sum
) -> None:
    path = scratch.write()
    scratch.scan()
    for line in lines:
        scratch.write(line)
        scratch.collector.look([str(path)])
    assert total(scratch) == expected


@echoes
def test_a_copy_read_after_the_original_adds_nothing(
    scratch: Home, lines: list[Any], expected: Sum
) -> None:
    """The final lines of a resumed copy show the echo with tokens only, as the copy was made."""
    scratch.write(header(), *lines)
    scratch.scan()
    scratch.write(header(), *lines, name="session-b.jsonl")
    final = {line["id"]: line for line in lines if line.get("type") == "gemini"}
    scratch.write(header("other"), *final.values(), name="session-c.jsonl", project="shop-1")
    scratch.restart()
    scratch.scan()
    assert total(scratch) == expected


def test_the_final_reply_may_come_minutes_and_a_restart_after_its_first_part(scratch: Home) -> None:
    scratch.write(header(), *first(thoughts=7))
    scratch.scan()
    assert total(scratch) == (1, 100, 0, 7, 0)
    scratch.restart()
    scratch.clock.now += 600_000
    scratch.scan()
    scratch.write(BOTH)
    scratch.scan()
    assert total(scratch) == (1, 100, 20, 30, 5)


def test_tool_calls_of_an_echo_count(scratch: Home) -> None:
    scratch.write(header(), *first(calls=CALL), {**BOTH, **gemini("B", 100, 20, calls=CALL)})
    assert [tool.calls for tool in scratch.scan().tools.values()] == [2]


def test_two_files_of_one_project_do_not_make_an_echo(scratch: Home) -> None:
    scratch.write(header("a"), *first())
    scratch.write(header("b"), BOTH, name="session-b.jsonl")
    scratch.scan()
    assert scratch.turns == 2


# The same in .json, which shows the past only to those who were there

A0, A1 = first(thoughts=7)
EMPTY: list[Any] = []

DOCUMENTS: dict[str, tuple[list[list[Any]], Sum]] = {
    "a retry, watched": ([[user(), A0], [user(), A1], [user(), A1, BOTH]], (1, 100, 20, 30, 5)),
    "a retry with a note between, watched": (
        [[A0], [A0, note("info")], [A1, note("info"), BOTH]],
        (1, 100, 20, 30, 5),
    ),
    "a retry, seen empty and cut off between": (
        [[A0], EMPTY, [A1], EMPTY, [A1, BOTH]],
        (1, 100, 20, 30, 5),
    ),
    "a retry of which only the final state is seen": ([[A1, BOTH]], (2, 200, 20, 37, 5)),
    "with tools, final state": (
        [[user(), gemini("A", 100, 0, thoughts=7, calls=CALL), note("warning"), BOTH]],
        (1, 100, 20, 30, 5),
    ),
    "user between, watched": ([[A0], [A1, user()], [A1, user(), BOTH]], (2, 200, 20, 37, 5)),
    "rewound between": ([[A0], [A1], [user()], [user(), BOTH]], (2, 200, 20, 37, 5)),
    "next reply without tokens": ([[A0], [A1], [A1, gemini("B", None)]], (1, 100, 0, 7, 0)),
}


@pytest.mark.parametrize("restarts", [False, True], ids=["one run", "restarts"])
@pytest.mark.parametrize(("documents", "expected"), DOCUMENTS.values(), ids=list(DOCUMENTS))
def test_an_echo_in_a_rewritten_document(
    scratch: Home, documents: list[list[Any]], expected: Sum, restarts: bool
) -> None:
    path = scratch.chats() / "session-a.json"
    before = scratch.scan()
    for messages in documents:
        path.write_bytes(dumps({**header(), "messages": messages}) if messages else b"")
        after = scratch.scan()
        assert_never_falls(before, after)
        before = after
        if restarts:
            scratch.restart()
    assert total(scratch) == expected


def test_an_echo_seen_live_stays_one_in_copies_that_do_not_show_it(scratch: Home) -> None:
    path = scratch.chats() / "session-a.json"
    for messages in ([A0], [A1], [A1, BOTH]):
        path.write_bytes(dumps({"messages": messages}))
        scratch.scan()
    copy = scratch.chats("shop-1") / path.name
    copy.write_bytes(path.read_bytes())
    scratch.write(header(), A1, BOTH)
    scratch.restart()
    scratch.scan()
    assert total(scratch) == (1, 100, 20, 30, 5)


# Messages that come again


def test_a_message_gives_one_turn_however_often_it_is_written(scratch: Home) -> None:
    again = [gemini("g-1"), gemini("g-1", calls=CALL), gemini("g-1", calls=CALL)]
    scratch.write(header(), *again, gemini("g-2", 120), *again, {"$set": {"messages": again}})
    scratch.write({**header(), "messages": again}, name="session-b.jsonl")
    scratch.scan()
    assert scratch.turns == 2
    assert [tool.calls for tool in scratch.scan().tools.values()] == [1]


def test_tokens_may_come_with_a_later_copy_of_the_message() -> None:
    talk = Talk().take(gemini("g-1", None)).take(gemini("g-1", None)).take(gemini("g-1"))
    assert talk.ids == [message_key("g-1")]


def test_the_first_tokens_of_a_message_are_kept(scratch: Home) -> None:
    scratch.write(gemini("g-1", 100, 10), gemini("g-1", 900, 90))
    scratch.scan()
    scratch.restart()
    scratch.write(gemini("g-1", 800, 80), gemini("g-1", None))
    scratch.scan()
    assert total(scratch) == (1, 100, 10, 0, 0)


def test_what_a_message_has_lost_in_a_checkpoint_is_not_missed(scratch: Home) -> None:
    bare = {"id": "g-1", "type": "gemini"}
    scratch.write(header(), gemini("g-1", calls=CALL), {"$set": {"messages": [bare]}}, bare)
    snapshot = scratch.scan()
    assert scratch.turns == 1
    assert [tool.calls for tool in snapshot.tools.values()] == [1]
    assert scratch.skipped == {}


def test_messages_of_a_checkpoint_count_where_the_lines_themselves_are_gone(scratch: Home) -> None:
    scratch.write({"$set": {"messages": [user(), gemini("g-1", calls=CALL), gemini("g-2")]}})
    scratch.scan()
    assert scratch.turns == 2


def test_messages_of_a_header_count(scratch: Home) -> None:
    scratch.write({**header("s-1"), "messages": [gemini("g-1")]})
    scratch.scan()
    assert scratch.turns == 1


def test_a_checkpoint_between_first_part_and_final_reply_does_not_hide_the_echo() -> None:
    old = [gemini("g-1", time=EARLIER), gemini("g-2", time=EARLIER)]
    talk = Talk().take(*old, *first(), {"$set": {"messages": old}}, *old, BOTH)
    assert talk.echoes == [None, None, None, message_key("A")]


@pytest.mark.parametrize(
    "rewind",
    [[{"$rewindTo": "u-1"}], [{"$rewindTo": "u-1"}, {"$set": {"messages": [user()]}}]],
    ids=["0.39", "with a checkpoint, 0.44"],
)
def test_a_rewind_refunds_nothing(scratch: Home, rewind: list[Any]) -> None:
    scratch.write(user(), gemini("g-1"), *rewind, gemini("g-2"))
    scratch.scan()
    assert scratch.turns == 2


def test_messages_taken_out_of_a_document_stay_counted(scratch: Home) -> None:
    path = scratch.chats() / "session-a.json"
    for ids in (["g-1", "g-2"], ["g-1"], [], ["g-3"], ["g-1", "g-2", "g-3"]):
        path.write_bytes(dumps({**header(), "messages": [gemini(id) for id in ids]}))
        scratch.scan()
    assert scratch.turns == 3


@pytest.mark.parametrize("kind", ["user", "info", "warning", "error", "thought", ""])
def test_only_replies_have_usage(kind: str) -> None:
    record = {**gemini(), "type": kind}
    assert Talk().take(record).document(record).batch.turns == []


def test_a_reply_and_its_tool_results_may_share_an_id() -> None:
    """From 0.45 on one id can stand for a reply and for the message with its tool results."""
    talk = Talk().take(gemini("g-1"), user("g-1"), gemini("g-1"), user("g-1"))
    assert talk.ids == [message_key("g-1")]


def test_a_reply_without_an_id_in_a_document_is_counted_as_skipped() -> None:
    record = gemini("")
    assert Talk().document(record).batch.turns == []
    assert Talk().document(record).reasons == {Reason.BAD_SHAPE: 1}


# Models


def model_names(talk: Talk) -> list[str]:
    return [turn.model for turn in talk.batch.turns]


def test_a_reply_without_a_model_has_the_last_one_of_its_session() -> None:
    talk = Talk().take(gemini("g-1", model="a"), gemini("g-2", model=None))
    talk.restart().take(gemini("g-3", model=None), gemini("g-4", model="b"))
    talk.take(gemini("g-5", model=""))
    assert model_names(talk) == ["a", "a", "a", "b", "b"]


def test_without_any_model_in_the_session_it_is_unknown(scratch: Home) -> None:
    scratch.write(header(), gemini(model=None))
    assert list(scratch.scan().pairs) == [("shop", "unknown")]


def test_a_model_named_on_a_reply_without_tokens_holds_for_those_after_it() -> None:
    talk = Talk().take(gemini("g-1", None, model="a"), gemini("g-2", model=None))
    assert model_names(talk) == ["a"]


def test_an_older_message_that_comes_again_does_not_change_the_model() -> None:
    old = gemini("g-0", model="a", time=EARLIER)
    talk = Talk().take(old, gemini("g-1", model="b"), gemini("g-2", model="c"))
    talk.take({**old, "toolCalls": gemini(calls=CALL)["toolCalls"]}, gemini("g-3", model=None))
    assert model_names(talk) == ["a", "b", "c", "c"]
    assert [call.model for call in talk.batch.calls] == ["a"]


def test_calls_are_under_the_model_of_their_message() -> None:
    talk = Talk().document(
        gemini("g-1", model="a", calls=CALL), gemini("g-2", None, model="b", calls=CALL)
    )
    assert [call.model for call in talk.batch.calls] == ["a", "b"]


# Sessions


@pytest.mark.parametrize(
    ("place", "lines", "session", "role"),
    [
        (MAIN, [], "filename", Role.MAIN),
        (MAIN, [header("s-1")], "s-1", Role.MAIN),
        (MAIN, [header("s-1"), {"$set": {"sessionId": "s-2"}}], "s-2", Role.MAIN),
        (MAIN, [header("s-1"), {"$set": {"summary": "x"}}], "s-1", Role.MAIN),
        (MAIN, [header("s-1"), header("s-1")], "s-1", Role.MAIN),
        (MAIN, [header("s-1", "subagent")], "s-1", Role.SUBAGENT),
        (MAIN, [header("s-1"), {"$set": {"kind": "subagent"}}], "s-1", Role.SUBAGENT),
        (CHILD, [header("s-1", "subagent")], "parent-id", Role.SUBAGENT),
        (CHILD, [header("s-1", "main")], "parent-id", Role.SUBAGENT),
        (CHILD, [], "parent-id", Role.SUBAGENT),
    ],
    ids=[
        "file name",
        "header",
        "$set.sessionId",
        "other $set",
        "header twice",
        "kind",
        "$set.kind",
        "subagent folder",
        "subagent folder whatever the kind",
        "subagent folder without header",
    ],
)
def test_whose_turn_it_is(place: Place, lines: list[Any], session: str, role: Role) -> None:
    [turn] = Talk(place).take(*lines).restart().take(gemini()).batch.turns
    assert (turn.session, turn.role, turn.project) == (session, role, Project("shop"))


def test_the_frame_of_a_document_tells_whose_turns_they_are() -> None:
    [turn] = Talk().document(gemini(), sessionId="s-1", kind="subagent").batch.turns
    assert (turn.session, turn.role) == ("s-1", Role.SUBAGENT)


def test_turns_before_a_new_session_id_belong_to_the_former() -> None:
    patch = {"$set": {"sessionId": "s-2"}}
    talk = Talk().take(header("s-1"), gemini("g-1"), patch, gemini("g-2"))
    assert [turn.session for turn in talk.batch.turns] == ["s-1", "s-2"]


def test_files_of_one_session_make_one_session(scratch: Home) -> None:
    child = header("sub", "subagent")
    scratch.write(header("s-1"), gemini("g-1"))
    scratch.write(header("s-1"), gemini("g-2"), name="session-b.jsonl")
    scratch.write(header("s-2"), name="session-c.jsonl")
    (scratch.chats(parent="s-1") / "x.jsonl").write_bytes(
        b"".join(dumps(line) + b"\n" for line in (child, gemini("g-3")))
    )
    snapshot = scratch.scan()
    assert snapshot.activity["shop"].sessions == 1
    assert snapshot.ledger_turns == 3


# Times


@pytest.mark.parametrize(
    ("text", "time", "reason"),
    [
        ("2026-11-30T20:11:51.341Z", millis("2026-11-30T20:11:51.341+00:00"), None),
        ("2026-11-30T20:11:51.341+05:30", millis("2026-11-30T14:41:51.341+00:00"), None),
        ("2025-01-01T00:00:00.000Z", millis("2025-01-01T00:00:00+00:00"), None),
        ("2024-12-31T23:59:59.999Z", WRITTEN, Reason.TIME_MISSING),
        ("1970-01-01T00:00:00.000Z", WRITTEN, Reason.TIME_MISSING),
        ("", WRITTEN, Reason.TIME_MISSING),
        ("a while ago", WRITTEN, Reason.TIME_MISSING),
        ("2026-11-30T21:05:00.000Z", NOW + 300_000, None),
        ("2026-11-30T21:05:00.001Z", NOW, Reason.TIME_AHEAD),
        ("9999-12-31T23:59:59.999Z", NOW, Reason.TIME_AHEAD),
    ],
)
def test_the_time_of_a_turn_and_of_its_calls(text: str, time: int, reason: Reason | None) -> None:
    talk = Talk().take(gemini(time=text, calls=CALL))
    assert [turn.time for turn in talk.batch.turns] == [time]
    assert [call.time for call in talk.batch.calls] == [time]
    assert talk.reasons == ({reason: 1} if reason is not None else {})


def test_a_record_without_any_timestamp_is_counted() -> None:
    record = gemini()
    del record["timestamp"]
    assert [turn.time for turn in Talk().take(record).batch.turns] == [WRITTEN]


def test_a_missing_time_is_the_file_s_at_the_first_scan_and_then_that_of_counting(
    scratch: Home,
) -> None:
    path = scratch.write(header(), gemini("g-1", time=""))
    written = scratch.clock.now - 86_400_000
    os.utime(path, ns=(written * 1_000_000,) * 2)
    assert scratch.scan().activity["shop"].last_turn == written
    scratch.write(gemini("g-2", time=""), name="session-b.jsonl")
    assert scratch.scan().activity["shop"].last_turn == scratch.clock.now
    assert scratch.skipped == {"time_missing": 2}


# Tool calls


def test_one_call_id_in_two_messages_is_two_calls(scratch: Home) -> None:
    scratch.write(gemini("g-1", calls=CALL), gemini("g-2", calls=CALL))
    assert [tool.calls for tool in scratch.scan().tools.values()] == [2]


def test_calls_without_an_id_are_told_apart_by_their_place_and_name(scratch: Home) -> None:
    calls = [("", "ls", "success"), ("", "ls", "error"), ("", "cat", "success")]
    record = gemini(calls=calls)
    for call in record["toolCalls"]:
        del call["id"]
    scratch.write(record, record)
    scratch.scan()
    scratch.restart()
    scratch.write(record)
    tools = scratch.scan().tools
    assert {name: tool.calls for (_, _, name), tool in tools.items()} == {"ls": 2, "cat": 1}


def test_a_growing_list_gives_each_call_once(scratch: Home) -> None:
    calls = [(f"c-{number}", "ls", "success") for number in range(6)]
    for count in (0, 1, 1, 3, 6, 6):
        scratch.write(gemini(calls=calls[:count]))
        scratch.scan()
        if count == 3:
            scratch.restart()
    assert [tool.calls for tool in scratch.scan().tools.values()] == [6]
    assert scratch.turns == 1


def test_calls_of_a_reply_that_never_has_tokens_count(scratch: Home) -> None:
    scratch.write(gemini("g-1", None, calls=CALL), gemini("g-2", None, calls=[]))
    assert [tool.calls for tool in scratch.scan().tools.values()] == [1]
    assert scratch.turns == 0


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("success", Status.SUCCESS),
        ("error", Status.ERROR),
        ("cancelled", Status.CANCELLED),
        ("awaiting_approval", Status.OTHER),
        ("SUCCESS", Status.OTHER),
        ("", Status.OTHER),
    ],
)
def test_the_status_of_a_call(text: str, status: Status) -> None:
    talk = Talk().take(gemini(calls=[("c-1", "ls", text)]))
    [call] = talk.batch.calls
    assert (call.message, call.call, call.status) == (message_key("g-1"), call_key("c-1"), status)


def test_a_call_that_failed_after_all_is_a_failure_after_a_restart(scratch: Home) -> None:
    scratch.write(gemini(calls=CALL))
    scratch.scan()
    scratch.restart()
    scratch.write(gemini(calls=[("c-1", "read_file", "error")]))
    assert [(t.calls, t.errors) for t in scratch.scan().tools.values()] == [(1, 1)]


# Messages of long ago


def test_an_older_message_may_still_get_its_tokens_and_calls(scratch: Home) -> None:
    rest = [gemini("g-1"), gemini("g-2"), gemini("g-3")]
    scratch.write(gemini("g-0", None, time=EARLIER), *rest)
    scratch.scan()
    scratch.write(gemini("g-0", 7, 7, calls=CALL, time=EARLIER))
    assert [tool.calls for tool in scratch.scan().tools.values()] == [1]
    assert total(scratch) == (4, 307, 37, 0, 0)


def test_older_messages_written_again_leave_the_order_of_replies_as_it_is(scratch: Home) -> None:
    """Up to 0.43 masked tool results are written again, in the middle of whatever goes on."""
    old = [gemini(f"g-{n}", 10 + n, 1, time=EARLIER, calls=CALL) for n in range(3)]
    scratch.write(header(), *old, user(), *first(thoughts=7), *old)
    scratch.scan()
    scratch.restart()
    scratch.write(*old, BOTH)
    scratch.scan()
    assert total(scratch) == (4, 133, 23, 30, 5)
