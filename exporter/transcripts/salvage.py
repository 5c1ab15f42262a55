"""JSON that a typed decoder refused: repaired, or taken apart field by field.

Nothing here runs on what Gemini CLI usually writes.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec

from .shapes import Call, Header, Parsed, Reason, Record, Tokens

Text = bytes | bytearray | memoryview

NOTHING: Final = Parsed()
BAD_JSON: Final = Parsed(reasons=(Reason.BAD_JSON,))
REFUSALS: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""What the decoders raise. A ValidationError is a DecodeError for a type that surprises."""

_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE: Final = re.compile(rb"\\(?:u[dD][89a-fA-F][0-9a-fA-F]{2}|.)", re.DOTALL)
_BOM: Final = b"\xef\xbb\xbf"

_record = msgspec.json.Decoder(Record)
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_array = msgspec.json.Decoder(list[msgspec.Raw])
_tokens = msgspec.json.Decoder(Tokens)
_call = msgspec.json.Decoder(Call)
_text = msgspec.json.Decoder(str)

_Decoded = TypeVar("_Decoded")


def decoded_again(
    decoder: msgspec.json.Decoder[_Decoded], text: Text, error: Exception
) -> _Decoded | Parsed:
    """Decode what was refused: field by field if a type surprised, else once more, repaired."""
    if isinstance(error, msgspec.ValidationError):
        apart = _taken_apart(text)
        if apart is not None:
            return apart
    repaired = _repaired(bytes(text))
    if repaired is not None:
        try:
            return decoder.decode(repaired)
        except REFUSALS as second:
            apart = _taken_apart(repaired)
            if apart is not None:
                return apart
            error = second
    return Parsed(reasons=(Reason.TOO_DEEP,)) if isinstance(error, RecursionError) else BAD_JSON


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


def _taken_apart(text: Text) -> Parsed | None:
    """Decode an object field by field, so that one surprising field does not cost the others.

    Returns None where the text is not JSON at all.
    """
    try:
        fields = _object.decode(text)
    except msgspec.ValidationError:
        return Parsed(reasons=(Reason.BAD_SHAPE,))
    except REFUSALS:
        return None
    reasons: list[Reason] = []
    if _field(fields, "$rewindTo", _text) is not None:
        return NOTHING
    if _field(fields, "id", _text, reasons):
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
    except REFUSALS:
        reasons.append(Reason.BAD_TOKENS)
        return None


def _call_of(raw: msgspec.Raw, reasons: list[Reason]) -> Call | None:
    try:
        return _call.decode(raw)
    except msgspec.ValidationError:
        pass
    try:
        fields = _object.decode(raw)
    except REFUSALS:
        reasons.append(Reason.BAD_SHAPE)
        return None
    return Call(*(_field(fields, name, _text, reasons) or "" for name in ("id", "name", "status")))


def _messages_of(fields: dict[str, msgspec.Raw], reasons: list[Reason]) -> list[Record]:
    messages = []
    for raw in _field(fields, "messages", _array, reasons) or ():
        try:
            messages.append(_record.decode(raw))
        except msgspec.ValidationError:
            parsed = _taken_apart(raw) or BAD_JSON
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
    except REFUSALS:
        if reasons is not None:
            reasons.append(Reason.BAD_SHAPE)
        return None
