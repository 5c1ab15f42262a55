"""Bytes of a transcript -> records. Pure: no input makes it raise, and content is never kept.

What Gemini CLI writes is decoded straight into typed structs, so text, thoughts and tool results
are skipped without being built. Where a type surprises, the record is taken apart field by field;
where the text itself is refused, it is repaired and decoded once more.
"""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

from ..ledger.model import TokenUsage

MAX_TOKENS: Final = 100_000_000
"""No count of one reply is larger; what claims to be is refused."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]


class Reason(StrEnum):
    """Why a record, or a part of one, was not counted as it stands."""

    BAD_JSON = "bad_json"
    BAD_SHAPE = "bad_shape"
    BAD_TOKENS = "bad_tokens"
    CACHED_ABOVE_INPUT = "cached_above_input"
    LINE_TOO_LONG = "line_too_long"
    TIME_MISSING = "time_missing"
    TIME_AHEAD = "time_ahead"
    TOO_DEEP = "too_deep"


class Tokens(msgspec.Struct, gc=False):
    """Usage as recorded; `cached` is part of `input`, a missing count is 0."""

    input: Count = 0
    output: Count = 0
    cached: Count = 0
    thoughts: Count = 0
    tool: Count = 0
    total: int = -1


class Call(msgspec.Struct, gc=False):
    """One tool call of a message."""

    id: str = ""
    name: str = ""
    status: str = ""


class Record(msgspec.Struct, gc=False):
    """One message; only `gemini` messages have `tokens`, `model` and `tool_calls`."""

    id: str = ""
    timestamp: str = ""
    type: str = ""
    model: str | None = None
    tokens: Tokens | None = None
    tool_calls: list[Call] | None = msgspec.field(default=None, name="toolCalls")


class Header(msgspec.Struct):
    """Facts about a session: a first line, a `$set` patch, or the frame of a .json document."""

    session: str | None = msgspec.field(default=None, name="sessionId")
    project_hash: str | None = msgspec.field(default=None, name="projectHash")
    kind: str | None = None
    messages: list[Record] | None = None


class Line(Record):
    """Any line of a .jsonl transcript; which kind it is follows from the fields it has."""

    rewind_to: str | None = msgspec.field(default=None, name="$rewindTo")
    patch: Header | None = msgspec.field(default=None, name="$set")
    session: str | None = msgspec.field(default=None, name="sessionId")
    project_hash: str | None = msgspec.field(default=None, name="projectHash")
    kind: str | None = None
    messages: list[Record] | None = None


class Parsed(msgspec.Struct):
    """What a surprising input still gave: records, header facts, and the reasons for the rest."""

    record: Record | None = None
    header: Header | None = None
    reasons: tuple[Reason, ...] = ()


_NOTHING: Final = Parsed()
_OTHERS: Final = {kind: Record(type=kind) for kind in ("user", "info", "warning", "error")}

_HEAD: Final = re.compile(
    rb'\{"id":"[^"\\]{1,128}","timestamp":"[^"\\]{1,64}","type":"(user|info|warning|error)",'
    rb'|\{"\$set":\{"lastUpdated":"[^"\\]{1,64}"\}\}\s*\Z'
)
"""Lines without usage, known by their first bytes. The CLI writes the keys in this order; a line in
any other order takes the full decode, so a match is never wrong about text inside a message."""

_MESSAGE_HEAD: Final = re.compile(rb'\{"id":"[^"\\]{1,128}","timestamp":"[^"\\]{1,64}","type":"')
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE: Final = re.compile(rb"\\(?:u[dD][89a-fA-F][0-9a-fA-F]{2}|.)", re.DOTALL)
_BOM: Final = b"\xef\xbb\xbf"

_line = msgspec.json.Decoder(Line)
_document = msgspec.json.Decoder(Header)
_record = msgspec.json.Decoder(Record)
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_array = msgspec.json.Decoder(list[msgspec.Raw])
_tokens = msgspec.json.Decoder(Tokens)
_call = msgspec.json.Decoder(Call)
_text = msgspec.json.Decoder(str)

_Bytes = bytes | bytearray | memoryview


def head_of(data: bytes | bytearray, start: int, end: int) -> Record | None:
    """Return a stand-in for a line that certainly holds no usage, judged by its head, else None.

    The line is `data[start:end]`, which may be cut off at its end. The stand-in has a type at most.
    """
    match = _HEAD.match(data, start, end)
    if match is None:
        return None
    kind = match[1]
    return _OTHERS[str(kind, "ascii")] if kind else _EMPTY


_EMPTY: Final = Record()


def parse_line(line: _Bytes) -> Parsed:
    """Return what a .jsonl line holds: a message, or header facts with messages, or reasons."""
    try:
        decoded = _line.decode(line)
    except msgspec.ValidationError:
        return _taken_apart(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return _repaired_line(bytes(line), error)
    return _classified(decoded)


def parse_document(data: _Bytes) -> Parsed:
    """Return the header facts of a .json transcript, its messages among them.

    A document that is cut off or empty gives the reason BAD_JSON: it is being rewritten.
    """
    try:
        return Parsed(header=_document.decode(data))
    except msgspec.ValidationError:
        return _taken_apart(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        repaired = _repaired(bytes(data))
        if repaired is not None:
            try:
                return Parsed(header=_document.decode(repaired))
            except msgspec.ValidationError:
                return _taken_apart(repaired)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as again:
                error = again
        return Parsed(reasons=(_reason(error),))


def usage_of(tokens: Tokens) -> tuple[TokenUsage, Reason | None]:
    """Return recorded counts as disjoint kinds, with a reason where they contradict each other.

    Some gateways report thoughts inside the output; the recorded total tells it.
    """
    cached, output = tokens.cached, tokens.output
    reason = None
    if cached > tokens.input:
        cached, reason = tokens.input, Reason.CACHED_ABOVE_INPUT
    if 0 < tokens.thoughts <= output and tokens.total == tokens.input + output + tokens.tool:
        output -= tokens.thoughts
    usage = TokenUsage(tokens.input - cached, cached, output, tokens.thoughts, tokens.tool)
    return usage, reason


def time_of(timestamp: str) -> int | None:
    """Return an ISO 8601 timestamp in milliseconds since the epoch, None if it is not one.

    A time without zone is taken as UTC, as the CLI writes it.
    """
    try:
        moment = datetime.fromisoformat(timestamp)
        if moment.tzinfo is None:
            moment = datetime.fromisoformat(timestamp + "+00:00")
        return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def _classified(line: Line) -> Parsed:
    if line.rewind_to is not None:
        return _NOTHING
    if line.id:
        return Parsed(line)
    if line.patch is not None:
        return Parsed(header=line.patch)
    return Parsed(header=Header(line.session, line.project_hash, line.kind, line.messages))


def _reason(error: Exception) -> Reason:
    return Reason.TOO_DEEP if isinstance(error, RecursionError) else Reason.BAD_JSON


def _repaired_line(line: bytes, error: Exception) -> Parsed:
    repaired = _repaired(line)
    if repaired is not None:
        try:
            return _classified(_line.decode(repaired))
        except msgspec.ValidationError:
            return _taken_apart(repaired)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as again:
            error = again
    # A crash or a full disk leaves half a line; the next append is glued to it.
    heads = [match.start() for match in _MESSAGE_HEAD.finditer(line)]
    if heads and heads[-1] > 0:
        rest = parse_line(line[heads[-1] :])
        return Parsed(rest.record, rest.header, (Reason.BAD_JSON, *rest.reasons))
    return Parsed(reasons=(_reason(error),))


def _repaired(text: bytes) -> bytes | None:
    """Return the text with lone surrogates, bad UTF-8 and a byte-order mark taken out, or None.

    Node writes a lone surrogate when it cuts a string inside an emoji; the turn must not be lost.
    """
    fixed = text.removeprefix(_BOM)
    if _SURROGATE.search(fixed):
        fixed = _ESCAPE.sub(_without_surrogate, fixed)
    fixed = fixed.decode("utf-8", "replace").encode()
    return fixed if fixed != text else None


def _without_surrogate(match: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if len(match[0]) == 6 else match[0]


def _taken_apart(text: _Bytes) -> Parsed:
    """Decode an object field by field, so that one surprising field does not cost the others."""
    try:
        fields = _object.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return Parsed(reasons=(Reason.BAD_SHAPE,))
    reasons: list[Reason] = []
    if _field(fields, "$rewindTo", _text) is not None:
        return _NOTHING
    if _field(fields, "id", _text):
        return Parsed(_record_of(fields, reasons), None, tuple(reasons))
    if "$set" in fields:
        return _taken_apart(fields["$set"])
    header = Header(
        _field(fields, "sessionId", _text, reasons),
        _field(fields, "projectHash", _text, reasons),
        _field(fields, "kind", _text, reasons),
        _messages_of(fields, reasons),
    )
    return Parsed(None, header, tuple(reasons))


def _record_of(fields: dict[str, msgspec.Raw], reasons: list[Reason]) -> Record:
    record = Record(
        _field(fields, "id", _text, reasons) or "",
        _field(fields, "timestamp", _text, reasons) or "",
        _field(fields, "type", _text, reasons) or "",
    )
    if record.type == "gemini":
        record.model = _field(fields, "model", _text, reasons)
        record.tokens = _tokens_of(fields, reasons)
        calls = [
            _call_of(raw, reasons) for raw in _field(fields, "toolCalls", _array, reasons) or ()
        ]
        record.tool_calls = [call for call in calls if call is not None]
    return record


def _tokens_of(fields: dict[str, msgspec.Raw], reasons: list[Reason]) -> Tokens | None:
    counts = _field(fields, "tokens", _object, reasons)
    if counts is None:
        return None
    known = {name: raw for name, raw in counts.items() if bytes(raw) != b"null"}
    try:
        return _tokens.decode(msgspec.json.encode(known))
    except (msgspec.DecodeError, RecursionError):
        reasons.append(Reason.BAD_TOKENS)
        return None


def _call_of(raw: msgspec.Raw, reasons: list[Reason]) -> Call | None:
    try:
        return _call.decode(raw)
    except msgspec.ValidationError:
        pass
    try:
        fields = _object.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        reasons.append(Reason.BAD_SHAPE)
        return None
    return Call(*(_field(fields, name, _text, reasons) or "" for name in ("id", "name", "status")))


def _messages_of(fields: dict[str, msgspec.Raw], reasons: list[Reason]) -> list[Record]:
    messages = []
    for raw in _field(fields, "messages", _array, reasons) or ():
        try:
            messages.append(_record.decode(raw))
        except msgspec.ValidationError:
            parsed = _taken_apart(raw)
            reasons.extend(parsed.reasons)
            if parsed.record is not None:
                messages.append(parsed.record)
    return messages


def _field(
    fields: dict[str, msgspec.Raw],
    name: str,
    decoder: msgspec.json.Decoder[Any],
    reasons: list[Reason] | None = None,
) -> Any:
    """Return a decoded field; None where it is absent, null or, with a reason, of another type."""
    raw = fields.get(name)
    if raw is None or bytes(raw) == b"null":
        return None
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        if reasons is not None:
            reasons.append(Reason.BAD_SHAPE)
        return None
