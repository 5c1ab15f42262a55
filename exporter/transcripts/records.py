"""Bytes of a transcript -> records. Pure: no input makes it raise, and content is never kept.

What Gemini CLI writes is decoded straight into typed structs, so text, thoughts and tool results
are skipped without being built. `salvage` takes over where that is refused.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

import msgspec

from ..ledger.model import TokenUsage
from .salvage import BAD_JSON, NOTHING, REFUSALS, Text, decoded_again, taken_apart
from .shapes import Header, Line, Parsed, Reason, Tokens

_TYPES: Final = {
    None: "",
    b"user": "user",
    b"info": "info",
    b"warning": "warning",
    b"error": "error",
}

_HEAD: Final = re.compile(
    rb'\{"id":"[^"\\]{1,128}","timestamp":"[^"\\]{1,64}","type":"(user|info|warning|error)",'
    rb'|\{"\$set":\{"lastUpdated":"[^"\\]{1,64}"\}\}\s*\Z'
)
"""Lines without usage, known by their first bytes. The CLI writes the keys in this order; a line in
any other order takes the full decode, so a match is never wrong about text inside a message."""

_STAMP: Final = b'{"$set":{"lastUpdated":"'
_STAMP_LENGTH: Final = len(_STAMP) + len('2026-01-01T00:00:00.000Z"}}')
"""Every third line is such a patch, always of this length: nothing else fits into it."""

_TEXT_ENDS: Final = (b'"}]}', b"}}]}")

_MESSAGE_HEAD: Final = re.compile(rb'\{"id":"[^"\\]{1,128}","timestamp":"[^"\\]{1,64}","type":"')

_LARGE: Final = 1 << 20
_MAX_IDS: Final = 100_000

_line = msgspec.json.Decoder(Line)
_document = msgspec.json.Decoder(Header)


def head_of(data: bytes | bytearray, start: int, end: int) -> str | None:
    """Return the message type of a line that holds no usage, judged by its head, else None.

    The line is `data[start:end]`, which may be cut off at its end. A metadata patch has no type.
    """
    match = _HEAD.match(data, start, end)
    return None if match is None else _TYPES[match[1]]


def skippable(data: bytes | bytearray, start: int, end: int) -> str | None:
    """Return the message type of a whole line that certainly holds no usage, else None.

    Its end is looked at as well, for a reply may be glued to half a line: it ends with the name of
    its model or, in its last tool call, with a truth value; what others say ends with text.
    """
    if end - start == _STAMP_LENGTH and data.startswith(_STAMP, start):
        return ""
    match = _HEAD.match(data, start, end)
    if match is None or not (match[1] is None or data.endswith(_TEXT_ENDS, start, end)):
        return None
    return _TYPES[match[1]]


def is_crowded(data: bytes | bytearray, start: int, end: int) -> bool:
    """Tell whether so many objects with an id are in a text that decoding would fill the memory."""
    if end - start <= _LARGE:
        return False
    # The key may also be written with an escape.
    return any(data.count(mark, start, end) > _MAX_IDS for mark in (b'"id"', b"\\u006"))


def parse_line(line: Text, crowded: bool = False) -> Parsed:
    """Return what a .jsonl line holds: a message, or header facts with messages, or reasons.

    A crowded line is taken apart piece by piece.
    """
    if crowded:
        return taken_apart(line) or BAD_JSON
    try:
        decoded = _line.decode(line)
    except REFUSALS as error:
        again = decoded_again(_line, line, error)
        if isinstance(again, Parsed):
            return _after_torn(bytes(line)) or again if again == BAD_JSON else again
        decoded = again
    if decoded.rewind_to is not None:
        return NOTHING
    if decoded.id:
        return Parsed(decoded)
    if decoded.patch is not None:
        return Parsed(header=decoded.patch)
    header = Header(decoded.session, decoded.project_hash, decoded.kind, decoded.messages)
    return Parsed(header=header)


def parse_document(data: Text, crowded: bool = False) -> Parsed:
    """Return the header facts of a .json transcript, its messages among them.

    A document that is cut off or empty gives the reason BAD_JSON: it is being rewritten. A crowded
    one is taken apart piece by piece.
    """
    if crowded:
        return taken_apart(data) or BAD_JSON
    try:
        return Parsed(header=_document.decode(data))
    except REFUSALS as error:
        again = decoded_again(_document, data, error)
        return again if isinstance(again, Parsed) else Parsed(header=again)


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


def _after_torn(line: bytes) -> Parsed | None:
    """Return the whole message at the end of a line that begins with a torn one.

    A crash or a full disk leaves half a line; the next append is glued to it.
    """
    heads = [match.start() for match in _MESSAGE_HEAD.finditer(line)]
    if not heads or heads[-1] == 0:
        return None
    rest = parse_line(line[heads[-1] :])
    return Parsed(rest.record, rest.header, (Reason.BAD_JSON, *rest.reasons))
