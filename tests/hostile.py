"""Transcripts that try to hurt: larger, deeper and stranger than any that Gemini CLI writes."""

from __future__ import annotations

import copy
import os
import re
import socket
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import dumps, gemini

MB = 1 << 20


@dataclass(frozen=True, slots=True)
class Many:
    """The same bytes again and again."""

    piece: bytes
    size: int
    """Bytes in all, rounded down to whole pieces."""


@dataclass(frozen=True, slots=True)
class Hole:
    """NUL bytes that take no place on the disk."""

    size: int


@dataclass(frozen=True, slots=True)
class Huge:
    """A transcript that would fill the memory if it were built, and what must come of it."""

    name: str
    pieces: tuple[bytes | Many | Hole, ...]
    turns: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    suffix: str = ".jsonl"

    def write(self, path: Path) -> None:
        """Write it in blocks."""
        with path.open("wb") as file:
            for piece in self.pieces:
                match piece:
                    case Many(text, size):
                        block = text * max(1, MB // len(text))
                        file.writelines([block] * (size // len(block)))
                        file.write(text * (size % len(block) // len(text)))
                    case Hole(size):
                        file.truncate(file.seek(size, os.SEEK_CUR))
                    case bytes():
                        file.write(piece)


_AFTER = b"\n" + dumps(gemini("after")) + b"\n"
_REPLY = b'{"id":"huge","timestamp":"2026-11-30T20:00:00.000Z","type":"gemini",'
_TOKENS = b'"tokens":{"input":7,"output":1,"cached":0}'
_PROMPT = b'{"id":"u","timestamp":"2026-11-30T20:00:00.000Z","type":"user","content":[{"text":"'
_EMPTY = Many(b"{},", 30 * MB)
_EMPTY_80 = Many(b"{},", 80 * MB)
_MEMBERS = Many(b'"x":{},', 30 * MB)

HUGE = (
    Huge("prompt of 300 MB", (_PROMPT, Hole(300 * MB), b'"}]}', _AFTER), 1),
    Huge("reply of 300 MB", (_REPLY, Hole(300 * MB), _AFTER), 1, {"line_too_long": 1}),
    Huge("300 MB without a newline", (_REPLY, Hole(300 * MB))),
    Huge(
        "reply of 30 MB",
        (_REPLY, b'"content":"', Many(b"a", 30 * MB), b'",', _TOKENS, b"}", _AFTER),
        2,
    ),
    Huge(
        "30 MB of half a reply",
        (_REPLY, b'"content":"', Many(b"a", 30 * MB), _AFTER),
        1,
        {"bad_json": 1},
    ),
    Huge("content of objects", (_REPLY, b'"content":[', _EMPTY, b"0],", _TOKENS, b"}", _AFTER), 2),
    Huge(
        "content of 80 MB of objects",
        (_REPLY, b'"content":[', _EMPTY_80, b"0],", _TOKENS, b"}", _AFTER),
        1,
        {"line_too_long": 1},
    ),
    Huge(
        "tool calls",
        (_REPLY, b'"toolCalls":[', Many(b"{},", 9 * MB), b"{}],", _TOKENS, b"}", _AFTER),
        2,
        {"too_many": 1},
    ),
    Huge(
        "messages",
        (b'{"$set":{"messages":[', Many(b'{"id":"m"},', 30 * MB), b"{}]}}", _AFTER),
        1,
        {"too_many": 1},
    ),
    Huge("fields of tokens", (_REPLY, b'"tokens":{', _MEMBERS, b'"input":7}}', _AFTER), 2),
    Huge(
        "fields of refused tokens",
        (_REPLY, b'"tokens":{', _MEMBERS, b'"input":7.5}}', _AFTER),
        1,
        {"bad_tokens": 1},
    ),
    Huge("fields of a line", (b"{", _MEMBERS, b'"id":7}', _AFTER), 1, {"bad_shape": 1}),
    Huge(
        "document of 60 MB",
        (
            b'{"messages":[{"id":"u","type":"user","content":"',
            Many(b"a", 60 * MB),
            b'"},' + dumps(gemini("huge")) + b"]}",
        ),
        1,
        suffix=".json",
    ),
    Huge(
        "document of 60 MB of half emojis",
        (
            b'{"messages":[{"id":"u","type":"user","content":"',
            Many(rb"\ud83d", 60 * MB),
            b'"},' + dumps(gemini("huge")) + b"]}",
        ),
        1,
        suffix=".json",
    ),
    Huge("50 MB of empty lines", (Many(b"\n", 50 * MB), _AFTER), 1),
    Huge("document of messages", (b'{"messages":[', _EMPTY, b"{}]}"), 0, {"too_many": 1}, ".json"),
    Huge("document of 1 GB", (Hole(1_024 * MB),), 0, {"line_too_long": 1}, ".json"),
)


@dataclass(frozen=True, slots=True)
class Flood:
    """Replies that each bring another name of a label."""

    label: str
    reply: Callable[[int], dict[str, Any]]
    document: bool = False
    folders: bool = False
    """Whether each reply has a project folder of its own."""

    def write(self, root: Path, number: int) -> None:
        """Write so many replies below a root."""
        lines = (dumps(self.reply(n)) for n in range(number))
        if self.folders:
            for n, line in enumerate(lines):
                chats = root / "tmp" / f"project-{n}" / "chats"
                chats.mkdir(parents=True)
                (chats / "session-a.jsonl").write_bytes(line + b"\n")
            return
        chats = root / "tmp" / "shop" / "chats"
        chats.mkdir(parents=True)
        if self.document:
            path = chats / "session-a.json"
            path.write_bytes(b'{"messages":[' + b",".join(lines) + b"]}")
            os.utime(path, (1_796_000_000, 1_796_000_000))
        else:
            (chats / "session-a.jsonl").write_bytes(b"\n".join(lines) + b"\n")


ODD = (
    *("null", "true", "-1", "1.5", "-0.0", "1e400", str(2**63), str(2**64), "-" + "9" * 5_000),
    *('""', '"x"', r'"\u0000"', r'"\ud83d"', r'"\u2028"', '"' + "y" * 5_000 + '"', '"models/"'),
    *('"9999-12-31T23:59:59Z"', '"0001-01-01T00:00:00+23:59"', '"2026-11-30T20:00:00+99:99"'),
    *("[]", "{}", "[[]]", "[{}]", "[null]", '{"id":1}', '[{"id":null}]', '{"messages":[{"id":1}]}'),
    *("[" * 2_000, "[" * 2_000 + "]" * 2_000, '{"a":' * 500 + "1" + "}" * 500),
)
"""JSON values that no field has, and some that are no JSON."""


def variants(record: Any) -> Iterator[bytes]:
    """Yield the record with each of its values in turn replaced by each odd one."""
    for path in _paths(record):
        marked = copy.deepcopy(record)
        inner = marked
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = "@"
        head, tail = dumps(marked).split(b'"@"')
        for value in ODD:
            yield head + value.encode() + tail


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield (*path, key)
        yield from _paths(inner, (*path, key))


def make_pipe(path: Path) -> None:
    """Make a FIFO that nobody writes to: a plain open would wait for ever."""
    os.mkfifo(path)


def make_device(path: Path) -> None:
    """Make a device that never ends, as `/dev/zero`; raises OSError where that is not allowed."""
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))


def make_socket(path: Path) -> None:
    """Make a socket that nobody listens on."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # The whole path may be longer than a socket's address can be.
        with closing(socket.socket(socket.AF_UNIX)) as opened:
            opened.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def make_link(path: Path) -> None:
    """Make a link to a transcript outside of its folder."""
    outside = path.parent.parent / "outside.jsonl"
    outside.write_bytes(dumps(gemini("outside")) + b"\n")
    path.symlink_to(outside)


def make_loop(path: Path) -> None:
    """Make a link to itself."""
    path.symlink_to(path.name)


def make_dangling(path: Path) -> None:
    """Make a link to nothing."""
    path.symlink_to("nothing")


def with_surrogates(data: bytes) -> bytes:
    """Return a transcript in which each text ends in the half of an emoji, as Node cuts it."""
    texts: Sequence[str] = ("content", "text", "description", "output", "llmContent")
    names = "|".join(texts).encode()
    return re.sub(rb'("(?:%b)":\s*"(?:[^"\\]|\\.)*)"' % names, rb'\1\\ud83d"', data)
