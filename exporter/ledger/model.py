"""Plain values that the three wings exchange: turns, token counts, tool calls and rates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import IntEnum
from hashlib import blake2b
from typing import Final

import msgspec

KINDS: Final = ("input", "cached", "output", "thoughts", "tool")
"""The token kinds, disjoint: every recorded token is of exactly one kind."""

PICO: Final = 10**12
"""Pico-USD in one USD. Money is an integer of pico-USD until it is rendered."""

PROMPT_EDGES: Final = (1_000, 4_000, 16_000, 32_000, 64_000, 128_000, 200_000, 500_000, 1_000_000)
"""Upper edges, in tokens, of the prompt size histogram; 200,000 is where the price tier changes."""


class TokenUsage(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Tokens of one reply or of a sum of replies, by disjoint kind.

    `input` is the part of the prompt billed at the full rate: `promptTokenCount` without the cached
    tokens. `thoughts` is billed as output and not part of `output`; `tool` is prompt tokens of
    server-side tools, billed as input and not part of `input`.
    """

    input: int = 0
    cached: int = 0
    output: int = 0
    thoughts: int = 0
    tool: int = 0

    @property
    def prompt(self) -> int:
        """Size of the whole prompt in tokens, cached ones included: it decides the price tier."""
        return self.input + self.cached + self.tool

    @property
    def total(self) -> int:
        """All tokens of the reply."""
        return self.input + self.cached + self.output + self.thoughts + self.tool

    def __iter__(self) -> Iterator[int]:
        return iter((self.input, self.cached, self.output, self.thoughts, self.tool))


class Role(IntEnum):
    """Who a reply belongs to. An ECHO row only remembers a message id; it counts nothing."""

    MAIN = 0
    SUBAGENT = 1
    ECHO = 2


class Status(IntEnum):
    """How a tool call ended. OTHER covers every status that Gemini CLI does not write today."""

    SUCCESS = 0
    ERROR = 1
    CANCELLED = 2
    OTHER = 3


class Project(msgspec.Struct, frozen=True, cache_hash=True, array_like=True):
    """A project as the transcripts name it.

    `slug` is the name of the slug folder, or `unknown-<8 hex>` where only a hash folder is known.
    `path` is the project's absolute folder, empty where nothing on disk tells it; `owner` is whose
    home it was found in.
    """

    slug: str
    path: str = ""
    owner: str = ""


class Turn(msgspec.Struct, gc=False, array_like=True):
    """One model reply with recorded usage.

    `id` is the 16-byte key of the message id (see `message_key`), `time` the event time in
    milliseconds since the epoch, `model` the recorded name. `echo` is the key of an earlier message
    that holds the first part of the same reply's usage (Gemini CLI up to 0.53), else None.
    """

    id: bytes
    session: str
    role: Role
    project: Project
    model: str
    time: int
    usage: TokenUsage
    echo: bytes | None = None


class ToolCall(msgspec.Struct, gc=False, array_like=True):
    """One finished tool call of one message; `message` and `call` together are its key.

    `time` is the event time in milliseconds of the message that holds the call.
    """

    message: bytes
    call: int
    tool: str
    status: Status
    project: Project
    model: str
    time: int


class Rate(msgspec.Struct, frozen=True, cache_hash=True):
    """What a token costs, in whole pico-USD per token.

    Server-side tool tokens cost the input rate, thoughts the output rate. `source` says where the
    rate comes from, library version included: it makes each dollar explainable.
    """

    model: str
    input: int
    cached: int
    output: int
    source: str

    def by_kind(self) -> tuple[int, int, int, int, int]:
        """Return the pico-USD per token of each kind, in the order of `KINDS`."""
        return (self.input, self.cached, self.output, self.output, self.input)

    def cost(self, tokens: Iterable[int]) -> int:
        """Return what tokens by kind cost at this rate, in pico-USD."""
        return sum(map(int.__mul__, tokens, self.by_kind()))


_UUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-e][0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")


def message_key(message_id: str) -> bytes:
    """Return the 16-byte ledger key of a message id.

    A canonical lower-case UUID is its own 16 bytes. Anything else is a BLAKE2b digest whose version
    nibble is set to 15, which no UUID has, so the two kinds of key cannot meet.
    """
    if _UUID.fullmatch(message_id):
        return bytes.fromhex(message_id.replace("-", ""))
    digest = bytearray(blake2b(message_id.encode("utf-8", "replace"), digest_size=16).digest())
    digest[6] |= 0xF0
    return bytes(digest)


def call_key(call_id: str) -> int:
    """Return the ledger key of a tool call id within its message, a signed 64-bit integer."""
    digest = blake2b(call_id.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


class FileCursor(msgspec.Struct, gc=False, array_like=True):
    """How far one transcript has been read; stored in the transaction that holds its turns.

    `root` and `path` are as the operating system names them, `path` relative to the root. `mtime`
    is in nanoseconds, `offset` the first byte that is not read yet (JSONL). `fingerprint` and
    `context` are the reader's own bytes: what it read last, and what it must remember of the file.
    """

    root: str
    path: str
    device: int = 0
    inode: int = 0
    size: int = 0
    mtime: int = 0
    offset: int = 0
    fingerprint: bytes = b""
    context: bytes = b""


class Batch(msgspec.Struct):
    """What one transaction of the ledger takes: turns and calls with the cursors behind them.

    A batch is `history` if it comes from a root that has never been read completely before.
    """

    turns: list[Turn] = []
    calls: list[ToolCall] = []
    cursors: dict[tuple[str, str], FileCursor] = {}
    gone: list[tuple[str, str]] = []
    history: bool = False

    def __len__(self) -> int:
        return len(self.turns) + len(self.calls) + len(self.cursors) + len(self.gone)
