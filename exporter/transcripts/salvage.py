"""JSON that a typed decoder refused: repaired, or taken apart field by field.

Nothing here runs on what Gemini CLI usually writes.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec

from .shapes import Call, Header, Message, Parsed, Reason, Tokens, Total
from .shapes import Text as Short

Text = bytes | bytearray | memoryview

NOTHING: Final = Parsed()
BAD_JSON: Final = Parsed(reasons=(Reason.BAD_JSON,))
REFUSALS: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""What the decoders raise. A ValidationError is a DecodeError for a type that surprises."""

_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE: Final = re.compile(rb"\\(?:u[dD][89a-fA-F][0-9a-fA-F]{2}|.)", re.DOTALL)
_PIECE: Final = 1 << 18
"""Bytes that are repaired at a time."""
_LONGEST_ESCAPE: Final = 6
_BOM: Final = b"\xef\xbb\xbf"

_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{},]', re.DOTALL)
_OPENING: Final = frozenset((b"[", b"{"))
_CLOSING: Final = frozenset((b"]", b"}"))
_MAX_PARTS: Final = 100_000
"""Elements of one list that are looked at; no transcript has so many messages or calls."""


_NULL: Final = msgspec.Raw(b"null")
"""Stands for a field that is absent: the CLI makes no difference."""


class _Raws(msgspec.Struct, kw_only=True):
    """The fields of any line, message or document that matter, none of them decoded."""

    id: msgspec.Raw = _NULL
    timestamp: msgspec.Raw = _NULL
    type: msgspec.Raw = _NULL
    model: msgspec.Raw = _NULL
    tokens: msgspec.Raw = _NULL
    calls: msgspec.Raw = msgspec.field(default=_NULL, name="toolCalls")
    rewind_to: msgspec.Raw = msgspec.field(default=_NULL, name="$rewindTo")
    patch: msgspec.Raw = msgspec.field(default=_NULL, name="$set")
    session: msgspec.Raw = msgspec.field(default=_NULL, name="sessionId")
    project_hash: msgspec.Raw = msgspec.field(default=_NULL, name="projectHash")
    kind: msgspec.Raw = _NULL
    messages: msgspec.Raw = _NULL


class _RawTokens(msgspec.Struct, omit_defaults=True):
    input: msgspec.Raw = _NULL
    output: msgspec.Raw = _NULL
    cached: msgspec.Raw = _NULL
    thoughts: msgspec.Raw = _NULL
    tool: msgspec.Raw = _NULL
    total: msgspec.Raw = _NULL


class _RawCall(msgspec.Struct):
    id: msgspec.Raw = _NULL
    name: msgspec.Raw = _NULL
    status: msgspec.Raw = _NULL


_message = msgspec.json.Decoder(Message)
_raws = msgspec.json.Decoder(_Raws)
_tokens = msgspec.json.Decoder(Tokens)
_raw_tokens = msgspec.json.Decoder(_RawTokens)
_call = msgspec.json.Decoder(Call)
_raw_call = msgspec.json.Decoder(_RawCall)
_text = msgspec.json.Decoder(Short)
_total = msgspec.json.Decoder(Total)

_Decoded = TypeVar("_Decoded")


def decoded_again(
    decoder: msgspec.json.Decoder[_Decoded], text: Text, error: Exception
) -> _Decoded | Parsed:
    """Decode what was refused: field by field if a type surprised, else once more, repaired.

    A bytearray is repaired in its place.
    """
    if isinstance(error, msgspec.ValidationError):
        apart = taken_apart(text)
        if apart is not None:
            return apart
    repaired = _repaired(text, error)
    if repaired is not None:
        try:
            return decoder.decode(repaired)
        except REFUSALS as second:
            apart = taken_apart(repaired)
            if apart is not None:
                return apart
            error = second
    return Parsed(reasons=(Reason.TOO_DEEP,)) if isinstance(error, RecursionError) else BAD_JSON


def _repaired(text: Text, error: Exception) -> bytearray | None:
    """Return the text with lone surrogates, bad UTF-8 and a byte-order mark taken out, or None.

    Node writes a lone surrogate when it cuts a string inside an emoji; the turn must not be lost.
    """
    marked = text[: len(_BOM)] == _BOM
    if not (marked or _SURROGATE.search(text) or "UTF-8" in str(error)):
        return None
    # Nothing becomes longer, so that a hostile text is repaired where it stands, in pieces.
    fixed = text if isinstance(text, bytearray) else bytearray(text)
    decode = getincrementaldecoder("utf-8")("ignore").decode
    start, done = len(_BOM) if marked else 0, 0
    while start < len(fixed):
        end = _piece_end(fixed, start)
        piece = decode(_ESCAPE.sub(_without_surrogate, bytes(fixed[start:end]))).encode()
        fixed[done : done + len(piece)] = piece
        start, done = end, done + len(piece)
    del fixed[done:]
    return fixed


def _piece_end(text: Text, start: int) -> int:
    """Return where to cut a text that begins at `start`: never within an escape."""
    end = start + _PIECE
    if end >= len(text):
        return len(text)
    piece = bytes(text[start:end])
    run = piece.rfind(b"\\")
    if run < len(piece) - _LONGEST_ESCAPE:
        return end
    # The first of a run of backslashes begins an escape, so the cut is right before it; a run that
    # begins with the piece is cut after whole pairs.
    cut = len(piece[: run + 1].rstrip(b"\\")) or (run + 1) // 2 * 2
    return start + cut if cut else end


def _without_surrogate(match: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if len(match[0]) == 6 else match[0]


def taken_apart(text: Text) -> Parsed | None:
    """Decode an object field by field, so that one surprising field does not cost the others.

    Lists are taken element by element, so that memory stays small whatever they hold. Returns None
    where the text is not JSON at all.
    """
    try:
        fields = _raws.decode(text)
    except msgspec.ValidationError:
        return Parsed(reasons=(Reason.BAD_SHAPE,))
    except REFUSALS:
        return None
    reasons: list[Reason] = []
    if _field(fields.rewind_to, _text) is not None:
        return NOTHING
    message_id = _field(fields.id, _text, reasons)
    if message_id:
        return Parsed(_record_of(message_id, fields, reasons), None, tuple(reasons))
    if not _is_null(fields.patch):
        patch = _field(fields.patch, _raws, reasons)
        fields = _Raws() if patch is None else patch
    header = Header(
        _field(fields.session, _text, reasons),
        _field(fields.project_hash, _text, reasons),
        _field(fields.kind, _text, reasons),
        _messages_of(fields.messages, reasons),
    )
    return Parsed(None, header, tuple(reasons))


def _record_of(message_id: str, fields: _Raws, reasons: list[Reason]) -> Message:
    record = Message(
        id=message_id,
        timestamp=_field(fields.timestamp, _text, reasons) or "",
        type=_field(fields.type, _text, reasons) or "",
    )
    if record.type == "gemini":
        record.model = _field(fields.model, _text, reasons)
        record.tokens = _tokens_of(fields.tokens, reasons)
        calls = (_call_of(raw, reasons) for raw in _elements(fields.calls, reasons))
        record.tool_calls = [call for call in calls if call is not None]
    return record


def _tokens_of(raw: msgspec.Raw, reasons: list[Reason]) -> Tokens | None:
    counts = _field(raw, _raw_tokens, reasons)
    if counts is None:
        return None
    known = {
        name: count
        for name, count in msgspec.structs.asdict(counts).items()
        if name != "total" and not _is_null(count)
    }
    total = _field(counts.total, _total)
    try:
        tokens = _tokens.decode(msgspec.json.encode(known))
        tokens.total = -1 if total is None else total
        return tokens
    except REFUSALS:
        reasons.append(Reason.BAD_TOKENS)
        return None


def _call_of(raw: memoryview, reasons: list[Reason]) -> Call | None:
    with suppress(*REFUSALS):
        return _call.decode(raw)
    try:
        fields = _raw_call.decode(raw)
    except REFUSALS:
        reasons.append(Reason.BAD_SHAPE)
        return None
    parts = (_field(part, _text, reasons) or "" for part in (fields.id, fields.name, fields.status))
    return Call(*parts)


def _messages_of(raw: msgspec.Raw, reasons: list[Reason]) -> list[Message]:
    messages = []
    for element in _elements(raw, reasons):
        try:
            messages.append(_message.decode(element))
        except REFUSALS:
            fields = _field(msgspec.Raw(element), _raws, reasons) or _Raws()
            message_id = _field(fields.id, _text, reasons)
            if message_id:
                messages.append(_record_of(message_id, fields, reasons))
    return messages


def _elements(raw: msgspec.Raw, reasons: list[Reason]) -> Iterator[memoryview]:
    """Yield the elements of a list; anything else gives none and, unless it is null, a reason."""
    text = memoryview(raw)
    if text[:1].tobytes() != b"[":
        if not _is_null(raw):
            reasons.append(Reason.BAD_SHAPE)
        return
    depth, start, count = 0, 1, 0
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in _OPENING:
            depth += 1
        elif mark in _CLOSING:
            depth -= 1
        if (depth == 1 and mark == b",") or depth == 0:
            element = text[start : token.start()]
            start = token.end()
            if depth or element.tobytes().strip():
                yield element
            count += 1
            if count > _MAX_PARTS:
                reasons.append(Reason.TOO_MANY)
                return


def _field(
    raw: msgspec.Raw,
    decoder: msgspec.json.Decoder[Any],
    reasons: list[Reason] | None = None,
) -> Any:
    """Return a decoded field; None where it is absent, null or, with a reason, of another type."""
    if _is_null(raw):
        return None
    try:
        return decoder.decode(raw)
    except REFUSALS:
        if reasons is not None:
            reasons.append(Reason.BAD_SHAPE)
        return None


def _is_null(raw: msgspec.Raw) -> bool:
    return memoryview(raw).nbytes == 4 and bytes(raw) == b"null"
