"""Decoding of lines and documents: what is typical, what surprises, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from exporter.ledger.model import TokenUsage
from exporter.transcripts.records import (
    head_of,
    parse_document,
    parse_line,
    skippable,
    time_of,
    usage_of,
)
from exporter.transcripts.shapes import Call, Parsed, Reason, Tokens
from tests.support import dumps as line
from tests.support import gemini, header, millis, user

TOKENS = Tokens(100, 10, 0, 0, 0, 110)
REPLY = line(gemini(calls=[("c-1", "read_file", "success")]))


def test_a_reply_gives_its_tokens_model_and_calls() -> None:
    record = parse_line(REPLY).record
    assert record is not None
    assert (record.id, record.type, record.model) == ("g-1", "gemini", "gemini-2.5-flash")
    assert record.tokens == TOKENS
    assert record.tool_calls == [Call("c-1", "read_file", "success")]


def test_each_kind_of_line_is_told_apart_in_the_documented_order() -> None:
    everything: dict[str, Any] = {
        "$rewindTo": "x",
        **gemini(),
        "$set": {"sessionId": "patched", "messages": [gemini("g-2")]},
        **header(),
    }
    assert parse_line(line(everything)) == Parsed()
    del everything["$rewindTo"]
    message = parse_line(line(everything))
    assert message.record is not None
    assert message.header is None
    del everything["id"]
    patch = parse_line(line(everything)).header
    assert patch is not None
    assert patch.session == "patched"
    assert [record.id for record in patch.messages or ()] == ["g-2"]
    del everything["$set"]
    head = parse_line(line(everything)).header
    assert head is not None
    assert (head.session, head.kind) == ("5e551001-0000", "main")


SURPRISES = {
    "float count": ({"tokens": {"input": 1.5}}, None, {Reason.BAD_TOKENS}),
    "negative count": ({"tokens": {"input": -1}}, None, {Reason.BAD_TOKENS}),
    "huge count": ({"tokens": {"input": 10**30}}, None, {Reason.BAD_TOKENS}),
    "above the cap": ({"tokens": {"input": 100_000_001}}, None, {Reason.BAD_TOKENS}),
    "boolean count": ({"tokens": {"input": True}}, None, {Reason.BAD_TOKENS}),
    "count as text": ({"tokens": {"input": "7"}}, None, {Reason.BAD_TOKENS}),
    "tokens as list": ({"tokens": [1]}, None, {Reason.BAD_SHAPE}),
    "null count is 0": ({"tokens": {"input": 5, "cached": None}}, Tokens(5), set()),
    "no counts": ({"tokens": {}}, Tokens(), set()),
    "null tokens": ({"tokens": None}, None, set()),
    "unknown count": ({"tokens": {"input": 5, "audio": [1]}}, Tokens(5), set()),
    "number as model": ({"model": 5}, TOKENS, {Reason.BAD_SHAPE}),
    "null model": ({"model": None}, TOKENS, set()),
    "number as time": ({"timestamp": 5}, TOKENS, {Reason.BAD_SHAPE}),
    "calls as object": ({"toolCalls": {}}, TOKENS, {Reason.BAD_SHAPE}),
    "call as number": ({"toolCalls": [5]}, TOKENS, {Reason.BAD_SHAPE}),
    "null calls": ({"toolCalls": None}, TOKENS, set()),
    "unknown fields": ({"new": {"a": [1]}}, TOKENS, set()),
}


@pytest.mark.parametrize(("change", "tokens", "reasons"), SURPRISES.values(), ids=list(SURPRISES))
def test_a_surprising_field_costs_only_itself(
    change: dict[str, Any], tokens: Tokens | None, reasons: set[Reason]
) -> None:
    parsed = parse_line(line({**gemini(), **change}))
    assert parsed.record is not None
    assert parsed.record.id == "g-1"
    assert parsed.record.tokens == tokens
    assert set(parsed.reasons) == reasons


def test_a_bad_call_does_not_cost_its_neighbours() -> None:
    calls: list[Any] = [{"id": 5, "name": "a", "status": "error"}, 7, {"id": "c", "name": "b"}]
    parsed = parse_line(line({**gemini(), "toolCalls": calls}))
    assert parsed.record is not None
    assert parsed.record.tool_calls == [Call("", "a", "error"), Call("c", "b")]
    assert parsed.reasons == (Reason.BAD_SHAPE, Reason.BAD_SHAPE)


def test_a_bad_message_in_a_checkpoint_does_not_cost_its_neighbours() -> None:
    bad = {**gemini("g-1"), "tokens": {"input": "x"}}
    parsed = parse_line(line({"$set": {"messages": [bad, 5, gemini("g-2"), {"id": 3}]}}))
    assert parsed.header is not None
    records = parsed.header.messages or []
    assert [(record.id, record.tokens is None) for record in records] == [
        ("g-1", True),
        ("g-2", False),
    ]
    assert parsed.reasons.count(Reason.BAD_TOKENS) == 1
    assert parsed.reasons.count(Reason.BAD_SHAPE) >= 2


REPAIRED = {
    "lone surrogate in a skipped field": REPLY.replace(b'""', rb'"cut \ud83d"'),
    "lone low surrogate": REPLY.replace(b'""', rb'"\udc00\udC00"'),
    "surrogate behind an escaped backslash": REPLY.replace(b'""', rb'"\\\ud83d"'),
    "bad UTF-8": REPLY.replace(b'""', b'"\xff\xfe"'),
    "byte-order mark": b"\xef\xbb\xbf" + REPLY,
    "raw surrogate bytes": REPLY.replace(b'""', b'"\xed\xa0\xbd"'),
}


@pytest.mark.parametrize("text", REPAIRED.values(), ids=list(REPAIRED))
def test_text_that_decoders_refuse_does_not_cost_the_turn(text: bytes) -> None:
    parsed = parse_line(text)
    assert parsed.record is not None
    assert parsed.record.tokens == TOKENS
    assert parsed.reasons == ()
    document = parse_document(b'{"messages":[' + text.removeprefix(b"\xef\xbb\xbf") + b"]}")
    assert document.header is not None
    assert [record.tokens for record in document.header.messages or ()] == [TOKENS]


def test_an_escaped_backslash_before_u_is_not_a_surrogate() -> None:
    text = REPLY.replace(b'"gemini-2.5-flash"', rb'"a\\ud83d"').replace(b'""', rb'"\ud83d"')
    record = parse_line(text).record
    assert record is not None
    assert record.model == r"a\ud83d"


def test_half_a_line_with_a_whole_one_glued_to_it_costs_only_the_half() -> None:
    for cut in range(1, len(REPLY)):
        parsed = parse_line(REPLY[:cut] + line(gemini("g-2")))
        assert parsed.record is not None
        assert parsed.record.id == "g-2"
        assert parsed.reasons == (Reason.BAD_JSON,)


@pytest.mark.parametrize("markdown", [None, True, False])
def test_a_reply_glued_to_half_a_user_line_is_not_skipped(markdown: bool | None) -> None:
    """With its tool calls last, too: the CLI ends each of them with `renderOutputAsMarkdown`."""
    half, reply = line(user())[:-5], gemini("g-2", calls=[("c-1", "ls", "success")])
    if markdown is None:
        del reply["toolCalls"]
    else:
        reply["toolCalls"][0]["renderOutputAsMarkdown"] = markdown
    glued = half + line(reply)
    assert skippable(glued, 0, len(glued)) is None
    record = parse_line(glued).record
    assert record is not None
    assert record.id == "g-2"


@pytest.mark.parametrize("depth", [900, 5_000, 1_000_000])
def test_deep_nesting_is_refused_or_taken_and_never_crashes(depth: int) -> None:
    parsed = parse_line(REPLY.replace(b'""', b"[" * depth + b"]" * depth))
    if depth < 1000:
        assert parsed.record is not None
    else:
        assert parsed == Parsed(reasons=(Reason.TOO_DEEP,))


@pytest.mark.parametrize("text", [b"[]", b"1", b"null", b'"x"', b"[1]"])
def test_a_line_that_is_no_object_has_a_bad_shape(text: bytes) -> None:
    assert parse_line(text) == Parsed(reasons=(Reason.BAD_SHAPE,))


@pytest.mark.parametrize("cut", [0, 1, 50, -1])
def test_a_document_that_is_cut_off_is_bad_json(cut: int) -> None:
    whole = line({"messages": [gemini()], **header()})
    assert parse_document(whole[:cut]) == Parsed(reasons=(Reason.BAD_JSON,))


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
@example(b"\xef\xbb\xbf")
@example(b'{"$set":')
@example(b'{"id":"' + b"x" * 200)
def test_no_bytes_make_the_parsers_raise(data: bytes) -> None:
    for parse in (parse_line, parse_document):
        for reason in parse(data).reasons:
            assert reason in set(Reason)
    head_of(data, 0, len(data))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        *("id", "timestamp", "type", "tokens", "model", "toolCalls", "$set", "$rewindTo"),
        *("sessionId", "projectHash", "kind", "messages"),
    ]
)


@given(st.dictionaries(FIELDS, JSON, max_size=8))
def test_any_type_in_any_known_field_never_raises(fields: dict[str, Any]) -> None:
    text = line(fields)
    record = parse_line(text).record
    if record is not None and record.tokens is not None:
        assert all(0 <= count <= 100_000_000 for count in usage_of(record.tokens)[0])
    parse_document(line({"messages": [fields], **fields}))


@pytest.mark.parametrize("kind", ["user", "info", "warning", "error"])
def test_a_line_without_usage_is_known_by_its_head_alone(kind: str) -> None:
    text = line({**user(), "type": kind})
    assert head_of(text[:100], 0, 100) == kind
    padded = b"#" * 7 + text + b"#" * 7
    assert skippable(padded, 7, 7 + len(text)) == kind


@pytest.mark.parametrize(
    "text",
    [
        line(gemini()),
        rb'{"id":"a\"","timestamp":"t","type":"user","content":1}',
        b'{"timestamp":"t","id":"a","type":"user","content":1}',
        b'{"id":"a","timestamp":"t","type":"user"',
        b'{"$set":{"lastUpdated":"x"},"id":"g"}',
        b'{"$set":{"lastUpdated":"x","messages":[]}}',
    ],
)
def test_any_other_head_takes_the_full_decode(text: bytes) -> None:
    assert head_of(text, 0, len(text)) is None


@pytest.mark.parametrize(
    ("tokens", "usage", "reason"),
    [
        (Tokens(100, 20, 30, 5, 2, 127), TokenUsage(70, 30, 20, 5, 2), None),
        (Tokens(100, 20, 30, 5, 2, -1), TokenUsage(70, 30, 20, 5, 2), None),
        (Tokens(100, 20, 30, 5, 2, 122), TokenUsage(70, 30, 15, 5, 2), None),
        (Tokens(100, 4, 30, 5, 2, 106), TokenUsage(70, 30, 4, 5, 2), None),
        (Tokens(100, 20, 0, 0, 0, 120), TokenUsage(100, 0, 20, 0, 0), None),
        (Tokens(100, 20, 130), TokenUsage(0, 100, 20, 0, 0), Reason.CACHED_ABOVE_INPUT),
    ],
    ids=[
        "all kinds",
        "no total",
        "thoughts inside output",
        "not inside",
        "plain",
        "cached > input",
    ],
)
def test_recorded_counts_become_disjoint_kinds(
    tokens: Tokens, usage: TokenUsage, reason: Reason | None
) -> None:
    assert usage_of(tokens) == (usage, reason)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-11-30T20:11:51.341Z", millis("2026-11-30T20:11:51.341+00:00")),
        ("2026-11-30T21:11:51.341+01:00", millis("2026-11-30T20:11:51.341+00:00")),
        ("2026-11-30T20:11:51", millis("2026-11-30T20:11:51+00:00")),
        ("", None),
        ("yesterday", None),
        ("\ud83d", None),
    ],
)
def test_timestamps_are_milliseconds_or_none(text: str, time: int | None) -> None:
    assert time_of(text) == time
