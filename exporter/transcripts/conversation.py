"""Records of one transcript, in order -> turns and tool calls: whose they are and which are echoes.

This is where the recording habits of two years of Gemini CLI are known. A message is written again
whenever it changes, so what has been given out before is not given out again; the ledger would
ignore it in any case.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

import msgspec

from ..ledger.model import (
    Batch,
    Project,
    Role,
    Status,
    TokenUsage,
    ToolCall,
    Turn,
    call_key,
    message_key,
)
from .records import time_of, usage_of
from .shapes import Header, Reason, Record, Tokens

_AHEAD_MS: Final = 5 * 60_000
_EARLIEST_MS: Final = 1_735_689_600_000
"""2025-01-01: before any recorded usage. An older timestamp is a broken clock."""

_STATUS: Final = {
    "success": Status.SUCCESS,
    "error": Status.ERROR,
    "cancelled": Status.CANCELLED,
}


class Place(NamedTuple):
    """What the path of a transcript tells: its project and, where no header does, its session."""

    project: Project
    session: str
    parent: str
    """Session that started these subagents; empty for a main session's folder."""


class Moment(NamedTuple):
    """What to take for the time of a record: milliseconds since the epoch.

    `now` is the time of counting; `fallback` is used where a record has no usable time of its own.
    """

    now: int
    fallback: int

    def plausible(self, time: int) -> int:
        """Return a time, or the fallback if it is before any usage or ahead of the clock."""
        return time if _EARLIEST_MS <= time <= self.now + _AHEAD_MS else self.fallback


class Reply(msgspec.Struct, omit_defaults=True):
    """A `gemini` message as far as the echo rule needs it.

    `unset` says that it was seen without tokens, `followed` that a `user` message came after it.
    """

    id: str
    time: str
    unset: bool
    tools: bool = False
    tokens: Tokens | None = None
    followed: bool = False


class Memory(msgspec.Struct, omit_defaults=True):
    """What must be remembered of a transcript between two reads; stored with its cursor."""

    session: str = ""
    kind: str = ""
    model: str = ""
    project_hash: str = ""
    last: Reply | None = None
    before: Reply | None = None


class _Gift(msgspec.Struct, gc=False):
    """What has been given out of one message: its tokens, and the statuses of its tool calls."""

    key: bytes
    time: int
    counted: bool = False
    statuses: tuple[str, ...] = ()


Given = dict[str, _Gift]
"""By message id."""

_GIVEN_MAX: Final = 20_000
"""More messages than any real session has; what is forgotten is given out twice at worst."""


class Conversation:
    """Takes the records of one transcript in file order and fills a batch.

    `memory` and `given` are changed on the way. `resumed` says that `given` lacks what was read of
    the transcript before: then only its time tells that a message is an old one.
    """

    def __init__(
        self,
        place: Place,
        memory: Memory,
        given: Given,
        moment: Moment,
        batch: Batch,
        reasons: Counter[str],
        resumed: bool = False,
    ) -> None:
        self._resumed = resumed
        self._place = place
        self._memory = memory
        self._given = given
        self._moment = moment
        self._batch = batch
        self._reasons = reasons

    @property
    def rows(self) -> int:
        """Turns and tool calls that are in the batch."""
        return len(self._batch.turns) + len(self._batch.calls)

    def header(self, header: Header) -> None:
        """Take session facts, and the messages that a checkpoint or a header repeats.

        Repeated messages say nothing about the order of replies: they only count if they are new.
        """
        self._facts(header)
        for record in header.messages or ():
            if record.type == "gemini":
                self._give(record)

    def document(self, header: Header) -> None:
        """Take a whole .json transcript, its messages in order; the header loses them."""
        self._facts(header)
        memory = self._memory
        # Tokens arrive late only on the newest message, so one is all there is to remember.
        unset = memory.last.id if memory.last is not None and memory.last.unset else None
        memory.last = memory.before = None
        # There may be many messages, so that each is dropped once it has been taken.
        messages, header.messages = header.messages or [], None
        messages.reverse()
        while messages:
            record = messages.pop()
            if record.type == "user":
                self.user()
            elif record.type == "gemini":
                self._advance(record, unset == record.id)

    def message(self, record: Record) -> None:
        """Take one line's message; the same id may come many times, each time complete."""
        if record.type == "user":
            self.user()
        elif record.type == "gemini":
            last, before = self._memory.last, self._memory.before
            known = record.id in self._given
            if not known and self._resumed and last is not None:
                known = record.timestamp < last.time
            if (
                not known
                or (last is not None and record.id == last.id)
                or (before is not None and record.id == before.id)
            ):
                self._advance(record)
            else:
                # An older message is written again, for instance when its results are masked.
                self._give(record)

    def user(self) -> None:
        """Take a `user` message, of which only its place matters."""
        if self._memory.last is not None:
            self._memory.last.followed = True

    def _advance(self, record: Record, unset: bool = False) -> None:
        """Take a reply at its place in the file and see whether it completes an echo."""
        memory = self._memory
        last, before = memory.last, memory.before
        if last is not None and record.id == last.id:
            reply = last
        elif before is not None and record.id == before.id:
            reply, before = before, None
        else:
            unset = unset or record.tokens is None
            reply, before = Reply(record.id, record.timestamp, unset), last
            memory.last, memory.before = reply, before
        memory.model = record.model or memory.model
        reply.tokens = reply.tokens or record.tokens
        reply.tools = reply.tools or bool(record.tool_calls)
        self._give(record, before if _is_echo(before, reply) else None)

    def _facts(self, header: Header) -> None:
        memory = self._memory
        memory.session = header.session or memory.session
        memory.kind = header.kind or memory.kind
        memory.project_hash = header.project_hash or memory.project_hash

    def _give(self, record: Record, echo: Reply | None = None) -> None:
        """Put what is new of a reply, its turn and its tool calls, into the batch."""
        tokens, calls = record.tokens, record.tool_calls or ()
        if tokens is None and not calls:
            return
        if not record.id:
            self._reasons[Reason.BAD_SHAPE] += 1
            return
        gift = self._given.get(record.id)
        if gift is None:
            if len(self._given) >= _GIVEN_MAX:
                self._given.clear()
            gift = _Gift(message_key(record.id), self._time(record.timestamp))
            self._given[record.id] = gift
        memory, place = self._memory, self._place
        model = record.model or memory.model
        key, time = gift.key, gift.time
        if tokens is not None and not gift.counted:
            gift.counted = True
            subagent = bool(place.parent) or memory.kind == "subagent"
            turn = Turn(
                key,
                place.parent or memory.session or place.session,
                Role.SUBAGENT if subagent else Role.MAIN,
                place.project,
                model,
                time,
                self._usage(tokens),
                message_key(echo.id) if echo is not None else None,
            )
            self._batch.turns.append(turn)
        statuses = tuple([call.status for call in calls])
        if len(statuses) < len(gift.statuses) or statuses == gift.statuses:
            return
        gift.statuses = statuses
        for position, call in enumerate(calls):
            self._batch.calls.append(
                ToolCall(
                    key,
                    call_key(call.id or f"{position} {call.name}"),
                    call.name,
                    _STATUS.get(call.status, Status.OTHER),
                    place.project,
                    model,
                    time,
                )
            )

    def _usage(self, tokens: Tokens) -> TokenUsage:
        usage, reason = usage_of(tokens)
        if reason is not None:
            self._reasons[reason] += 1
        return usage

    def _time(self, timestamp: str) -> int:
        time = time_of(timestamp)
        if time is None or time < _EARLIEST_MS:
            self._reasons[Reason.TIME_MISSING] += 1
            return self._moment.fallback
        if time > self._moment.now + _AHEAD_MS:
            self._reasons[Reason.TIME_AHEAD] += 1
            return self._moment.now
        return time


def _is_echo(first: Reply | None, final: Reply) -> bool:
    """Tell whether the first reply's usage is the first chunk of the final one's (up to 0.53).

    The CLI put a stream's first usage on the message before it when that one had none: a reply
    without usage that asked for tools, or an attempt that was tried again. Its prompt then has the
    same size, and nothing that grows during a stream is larger on the first.
    """
    if first is None or first.followed or final.unset or not (first.unset or first.tools):
        return False
    a, b = first.tokens, final.tokens
    if a is None or b is None:
        return False
    return (
        a.input == b.input
        and a.output <= b.output
        and a.cached <= b.cached
        and a.thoughts <= b.thoughts
        and a.tool <= b.tool
    )
