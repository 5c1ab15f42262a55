"""What a transcript's JSON holds, as far as it is of use, and why a part of it was refused."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec

MAX_TOKENS: Final = 100_000_000
"""No count of one reply is larger; what claims to be is refused."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
Total = Annotated[int, msgspec.Meta(ge=-1, le=10 * MAX_TOKENS)]
Text = Annotated[str, msgspec.Meta(max_length=1024)]
"""An id, a name or a time; what is longer is none, and would only fill the memory."""


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
    TOO_MANY = "too_many"


class Tokens(msgspec.Struct, gc=False, omit_defaults=True):
    """Usage as recorded; `cached` is part of `input`, a missing count is 0."""

    input: Count = 0
    output: Count = 0
    cached: Count = 0
    thoughts: Count = 0
    tool: Count = 0
    total: Total = -1


class Call(msgspec.Struct, gc=False):
    """One tool call of a message.

    The CLI always writes an id. It is required, so that nothing shorter can fill the memory; where
    it is missing the slower way of `salvage` is taken.
    """

    id: Text
    name: Text = ""
    status: Text = ""


class Record(msgspec.Struct, gc=False, kw_only=True):
    """One message; only `gemini` messages have `tokens`, `model` and `tool_calls`."""

    id: Text = ""
    timestamp: Text = ""
    type: Text = ""
    model: Text | None = None
    tokens: Tokens | None = None
    tool_calls: list[Call] | None = msgspec.field(default=None, name="toolCalls")


class Message(Record, kw_only=True):
    """A message in a list of messages; its id is required for the same reason as a call's."""

    id: Text


class Header(msgspec.Struct):
    """Facts about a session: a first line, a `$set` patch, or the frame of a .json document."""

    session: Text | None = msgspec.field(default=None, name="sessionId")
    project_hash: Text | None = msgspec.field(default=None, name="projectHash")
    kind: Text | None = None
    messages: list[Message] | None = None


class Line(Record, kw_only=True):
    """Any line of a .jsonl transcript; which kind it is follows from the fields it has."""

    rewind_to: Text | None = msgspec.field(default=None, name="$rewindTo")
    patch: Header | None = msgspec.field(default=None, name="$set")
    session: Text | None = msgspec.field(default=None, name="sessionId")
    project_hash: Text | None = msgspec.field(default=None, name="projectHash")
    kind: Text | None = None
    messages: list[Message] | None = None


class Parsed(msgspec.Struct):
    """What a surprising input still gave: records, header facts, and the reasons for the rest."""

    record: Record | None = None
    header: Header | None = None
    reasons: tuple[Reason, ...] = ()
