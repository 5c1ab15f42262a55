"""What happens to a transcript between two reads of it: one test for each event."""

from __future__ import annotations

import errno
import os
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from exporter.ledger.model import Batch, FileCursor, Project
from exporter.transcripts import reader as module
from exporter.transcripts.conversation import Place
from exporter.transcripts.reader import Reader, Reading, Source
from tests.support import OPEN_ERRORS, Clock, Home, dumps, gemini, header, home, user

TINY = {"buffer": 512, "max_line": 4096, "budget": 1 << 20}


def reply(number: int, **more: Any) -> bytes:
    """Return the line of a reply with that many prompt tokens, by which it is told from others."""
    return dumps({**gemini(f"g-{number}", number), **more}) + b"\n"


def prompt(size: int = 0) -> bytes:
    """Return the line of a user message, `size` bytes of text in it."""
    return dumps({**user(), "content": [{"text": "x" * size}]}) + b"\n"


def document(*numbers: int, **more: Any) -> bytes:
    """Return a .json transcript."""
    messages = [gemini(f"g-{number}", number) for number in numbers]
    return dumps({**header(), "messages": messages, **more})


PLACE = Place(Project("shop"), "s", "")


class Tail:
    """One transcript and a reader that follows it."""

    def __init__(self, folder: Path, name: str = "session-a.jsonl", **limits: int) -> None:
        self.path = folder / name
        self.clock = Clock()
        self.reader = Reader(**limits)
        self.cursor = FileCursor(str(folder), name)
        self.reasons: Counter[str] = Counter()
        self.readings: list[Reading] = []

    def write(self, *data: bytes) -> None:
        with self.path.open("ab") as file:
            file.writelines(data)

    def rewrite(self, *data: bytes) -> None:
        self.path.write_bytes(b"".join(data))

    def step(self) -> list[int]:
        """Read once, up to the budget, and return the prompt tokens of the turns that it gave."""
        batch = Batch()
        size = self.path.lstat().st_size
        source = Source(self.cursor.root, self.cursor.path, size, self.cursor)
        reading = self.reader.read(source, PLACE, self.clock(), False, batch, self.reasons)
        assert reading.cursor is not None
        self.cursor = reading.cursor
        self.readings.append(reading)
        return [turn.usage.input for turn in batch.turns]

    def read(self) -> list[int]:
        """Read all that there is."""
        found = self.step()
        while self.readings[-1].pending:
            found += self.step()
        return found

    def restart(self) -> None:
        """Go on from the cursor with another reader."""
        self.reader.keep_only(())
        self.reader = Reader()


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Callable[..., Tail]]:
    made: list[Tail] = []

    def make(name: str = "session-a.jsonl", **limits: int) -> Tail:
        made.append(Tail(tmp_path, name, **limits))
        return made[-1]

    yield make
    for tail in made:
        tail.reader.keep_only(())


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Home]:
    with home(tmp_path) as opened:
        yield opened


Follow = Callable[..., Tail]


# Lines


def test_blank_lines_are_passed_over_wherever_they_are(follow: Follow) -> None:
    tail = follow(buffer=64, budget=100)
    blank = b"\n\r\n \n\t\n" * 50
    for count in (100, 200, 300):
        tail.write(blank, dumps(gemini(f"g-{count}", count)) + b"\r\n", blank, b"\n")
    tail.write(b"\n\n ")
    assert tail.read() == [100, 200, 300]
    assert tail.reasons == {}
    assert tail.cursor.offset == tail.path.stat().st_size - 1
    tail.write(b"\n", dumps(gemini("g-4", 400)) + b"\n")
    assert tail.read() == [400]


@pytest.mark.parametrize("restart", [False, True], ids=["open", "reopened"])
def test_a_partial_line_is_taken_once_it_is_complete(follow: Follow, restart: bool) -> None:
    tail, line = follow(), reply(2)
    tail.write(reply(1))
    assert tail.read() == [1]
    for cut in range(0, len(line), 40):
        tail.write(line[cut : cut + 40])
        if restart:
            tail.restart()
        assert tail.read() == ([2] if cut + 40 >= len(line) else [])
    assert tail.reasons == {}
    assert tail.cursor.offset == tail.cursor.size


def test_a_line_without_its_end_is_never_taken(follow: Follow) -> None:
    tail = follow()
    tail.write(reply(1), reply(2)[:-1])
    assert tail.read() == [1]
    tail.clock.now += 3_600_000
    assert tail.read() == []
    assert tail.cursor.offset == len(reply(1))
    assert tail.readings[-1].pending == 0
    tail.write(b"\n")
    assert tail.read() == [2]


@pytest.mark.parametrize("size", [1, 2, 100, 511, 512, 513, 1000])
def test_any_size_of_the_buffer_gives_the_same(follow: Follow, size: int) -> None:
    tail = follow(buffer=size, max_line=1 << 16)
    lines = [reply(1), prompt(700), reply(2), b"\n", prompt(3), reply(3), prompt(2000), reply(4)]
    tail.write(*lines)
    assert tail.read() == [1, 2, 3, 4]
    assert tail.reasons == {}
    assert tail.readings[-1].bytes == tail.cursor.offset == sum(map(len, lines))


def test_a_reply_longer_than_the_buffer_is_taken_in_a_larger_one(follow: Follow) -> None:
    tail = follow(**TINY)
    tail.write(reply(1, content="x" * 3000), reply(2))
    assert tail.read() == [1, 2]
    assert tail.reasons == {}


def test_a_reply_over_the_limit_is_counted_and_the_rest_is_read(follow: Follow) -> None:
    tail = follow(**TINY)
    tail.write(reply(1), reply(2, content="x" * 4096), reply(3), reply(4, content="x" * 90_000))
    assert tail.read() == [1, 3]
    tail.write(reply(5))
    assert tail.read() == [5]
    assert tail.reasons == {"line_too_long": 2}


def test_a_line_with_its_end_may_be_as_long_as_the_limit(follow: Follow) -> None:
    line = reply(1, content="x" * 1000)
    tail = follow(buffer=100, max_line=len(line))
    tail.write(line, line[:-3] + b' "}\n')
    assert tail.read() == [1]
    tail = follow("session-b.jsonl", buffer=100, max_line=len(line) - 2)
    tail.write(line, reply(2))
    assert tail.read() == [2]
    assert tail.reasons == {"line_too_long": 1}


def test_a_reply_over_the_limit_is_not_counted_before_its_end_is_there(follow: Follow) -> None:
    tail = follow(**TINY)
    line = reply(2, content="x" * 9000)
    tail.write(reply(1), line[:8000])
    assert tail.read() == [1]
    assert tail.read() == []
    assert tail.reasons == {}
    assert tail.cursor.offset == len(reply(1))
    tail.write(line[8000:], reply(3))
    assert tail.read() == [3]
    assert tail.reasons == {"line_too_long": 1}


def test_a_user_message_over_the_limit_is_nothing_special(follow: Follow) -> None:
    tail = follow(**TINY)
    tail.write(reply(1), prompt(50_000), reply(2))
    assert tail.read() == [1, 2]
    assert tail.reasons == {}


@pytest.mark.parametrize("size", [3, 700, 9000], ids=["whole", "over the buffer", "over the limit"])
def test_a_user_message_of_any_length_ends_the_search_for_an_echo(
    follow: Follow, size: int
) -> None:
    tail = follow(**TINY)
    tail.write(dumps(gemini("A", None)) + b"\n", dumps(gemini("A", 7, 0)) + b"\n", prompt(size))
    assert tail.read() == [7]
    batch = Batch()
    tail.write(dumps(gemini("B", 7, 5)) + b"\n")
    source = Source(tail.cursor.root, tail.cursor.path, 0, tail.cursor)
    tail.reader.read(source, PLACE, tail.clock(), False, batch, tail.reasons)
    assert [turn.echo for turn in batch.turns] == [None]


def test_a_long_user_message_is_skipped_without_being_kept_in_memory(follow: Follow) -> None:
    tail = follow(buffer=65_536)
    tail.write(reply(1), prompt(16 << 20), reply(2))
    tracemalloc.start()
    try:
        assert tail.read() == [1, 2]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_blank_lines_are_nothing(follow: Follow, end: bytes) -> None:
    tail = follow()
    lines = [b"", dumps(header()), b"", dumps(user()), reply(1)[:-1], b"", b"", reply(2)[:-1]]
    tail.write(*(line + end for line in lines))
    assert tail.read() == [1, 2]
    assert tail.reasons == {}
    assert tail.cursor.offset == tail.cursor.size


@pytest.mark.parametrize(
    ("first", "found"),
    [(dumps(header()) + b"\n", [2]), (reply(1), [1, 2])],
    ids=["header", "reply"],
)
def test_a_byte_order_mark_at_the_start_is_nothing(
    follow: Follow, first: bytes, found: list[int]
) -> None:
    tail = follow()
    tail.write(b"\xef\xbb\xbf" + first, reply(2))
    assert tail.read() == found
    assert tail.readings[-1].project_hash == ("0" * 64 if found == [2] else "")
    assert tail.reasons == {}


SPOILT = {
    "garbage": b"\x80garbage\n",
    "NUL bytes, as after a power loss": b"\0" * 600 + b"\n",
    "half a reply": reply(9)[:70] + b"\n",
    "a number": b"17\n",
    "two values": b"{} {}\n",
}


@pytest.mark.parametrize("bad", SPOILT.values(), ids=list(SPOILT))
def test_a_spoilt_line_is_counted_and_the_rest_is_read(follow: Follow, bad: bytes) -> None:
    tail = follow(**TINY)
    tail.write(reply(1), bad, reply(2))
    assert tail.read() == [1, 2]
    assert tail.reasons.total() == 1
    assert tail.read() == []
    assert tail.reasons.total() == 1


@pytest.mark.parametrize(
    "half",
    [reply(9)[:150], prompt(9)[:60], dumps(header())[:30], b"\0" * 4096],
    ids=["reply", "user", "header", "NUL bytes"],
)
@pytest.mark.parametrize("seen", [False, True], ids=["at once", "seen half"])
def test_a_reply_glued_to_a_torn_line_is_counted(follow: Follow, half: bytes, seen: bool) -> None:
    tail = follow()
    tail.write(reply(1), half)
    if seen:
        assert tail.read() == [1]
    tail.write(reply(2), reply(3))
    assert tail.read() == ([2, 3] if seen else [1, 2, 3])
    assert tail.reasons == {"bad_json": 1}


# Files that become others


def test_a_file_truncated_in_place_is_read_from_its_start(follow: Follow) -> None:
    tail = follow()
    tail.write(reply(1), reply(2))
    assert tail.read() == [1, 2]
    tail.rewrite()
    assert tail.read() == []
    assert tail.cursor.offset == 0
    tail.write(reply(3))
    assert tail.read() == [3]


@pytest.mark.parametrize("restart", [False, True], ids=["open", "reopened"])
def test_a_file_cut_short_and_grown_again_between_two_looks(follow: Follow, restart: bool) -> None:
    tail = follow()
    tail.write(dumps(header()) + b"\n", reply(1), reply(2))
    assert tail.read() == [1, 2]
    tail.rewrite(dumps(header("other")) + b"\n", reply(3), reply(4), reply(5), reply(6))
    if restart:
        tail.restart()
    assert tail.read() == [3, 4, 5, 6]


def test_a_rewrite_of_the_same_size_is_noticed(follow: Follow) -> None:
    tail = follow()
    tail.write(reply(1), reply(2))
    assert tail.read() == [1, 2]
    tail.rewrite(reply(3), reply(4))
    assert tail.path.stat().st_size == tail.cursor.size
    assert tail.read() == [3, 4]


@pytest.mark.parametrize("changed", [0, 1], ids=["first line", "last line"])
def test_a_rewrite_of_either_end_is_noticed(follow: Follow, changed: int) -> None:
    tail, filler = follow(), prompt(2000)
    tail.write(reply(1), filler, reply(2))
    assert tail.read() == [1, 2]
    tail.rewrite(reply(3 if changed == 0 else 1), filler, reply(3 if changed else 2), reply(4))
    assert tail.read() == [3, 4]


@pytest.mark.parametrize("restart", [False, True], ids=["open", "reopened"])
def test_a_replaced_file_is_read_from_its_start(follow: Follow, restart: bool) -> None:
    tail = follow()
    tail.write(reply(1), reply(2))
    assert tail.read() == [1, 2]
    new = tail.path.with_name("new")
    new.write_bytes(reply(3) + reply(4) + reply(5))
    new.replace(tail.path)
    if restart:
        tail.restart()
    assert tail.read() == [3, 4, 5]


def test_facts_of_the_session_hold_when_its_file_is_made_again_without_a_header(
    follow: Follow,
) -> None:
    """A running CLI goes on appending to a transcript that another one has deleted."""
    tail = follow()
    tail.write(dumps(header("s-1", "subagent")) + b"\n", dumps(gemini("g-1", model="m")) + b"\n")
    tail.read()
    tail.path.unlink()
    tail.write(dumps(gemini("g-2", model=None)) + b"\n")
    batch = Batch()
    source = Source(tail.cursor.root, tail.cursor.path, 0, tail.cursor)
    tail.reader.read(source, PLACE, tail.clock(), False, batch, tail.reasons)
    [turn] = batch.turns
    assert (turn.session, turn.role.name, turn.model) == ("s-1", "SUBAGENT", "m")


# Work


def test_the_budget_is_kept_and_the_rest_is_pending(follow: Follow) -> None:
    line = len(reply(10))
    tail = follow(buffer=line, budget=3 * line)
    tail.write(*(reply(number) for number in range(10, 20)))
    assert tail.step() == [10, 11, 12]
    assert tail.readings[-1].pending == 7 * line
    tail.restart()
    assert tail.step() == [13, 14, 15, 16, 17, 18, 19], "the new reader has the usual budget"
    assert tail.readings[-1].pending == 0


def test_one_line_is_read_even_if_it_is_over_the_budget(follow: Follow) -> None:
    tail = follow(buffer=100, budget=200)
    tail.write(reply(1, content="x" * 5000), prompt(5000), reply(2), reply(3))
    assert tail.read() == [1, 2, 3]
    assert all(reading.bytes for reading in tail.readings)


def test_an_unfinished_line_over_the_budget_is_not_pending(follow: Follow) -> None:
    tail = follow(buffer=100, budget=200)
    tail.write(reply(1), reply(2, content="x" * 5000)[:-1])
    assert tail.read() == [1]
    assert tail.step() == []
    assert tail.readings[-1].pending == 0


class Metered(FileIO):
    """A file that counts the bytes that are read."""

    read_bytes = 0

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        Metered.read_bytes += count or 0
        return count

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(-1 if size is None else size)
        Metered.read_bytes += len(data)
        return data


@pytest.mark.parametrize("restart", [False, True], ids=["open", "reopened"])
def test_after_an_append_only_what_is_new_is_read_and_the_two_edges(
    follow: Follow, monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    monkeypatch.setattr(module, "FileIO", Metered)
    tail = follow()
    tail.write(*(prompt(1000) for _ in range(1000)), reply(1))
    tail.read()
    if restart:
        tail.restart()
    tail.write(reply(2))
    Metered.read_bytes = 0
    assert tail.read() == [2]
    assert tail.readings[-1].bytes == len(reply(2))
    edges = 2 * 256
    assert Metered.read_bytes <= len(reply(2)) + 2 * edges, "compared and taken anew"


def test_nothing_new_gives_nothing_and_reads_nothing(follow: Follow) -> None:
    tail = follow()
    tail.write(reply(1))
    tail.read()
    assert tail.read() == []
    assert tail.readings[-1].bytes == 0


# Documents


def at(tail: Tail, age: float) -> None:
    """Let the file's last change be so many seconds ago."""
    written = tail.clock.now * 1_000_000 - round(age * 1e9)
    os.utime(tail.path, ns=(written, written))


@pytest.mark.parametrize(
    "data",
    [document(1)[:-40], b"{", b"\0" * 50, b"garbage", b"[]"],
    ids=["cut off", "one byte", "NUL bytes", "garbage", "no object"],
)
def test_a_document_that_cannot_be_read_is_counted_once_it_has_stood_still(
    follow: Follow, data: bytes
) -> None:
    tail = follow("session-a.json")
    tail.rewrite(data)
    for age in (0.0, 0.04, 1.0, 4.9):
        at(tail, age)
        assert tail.read() == []
        assert tail.reasons == {}
        assert tail.cursor.mtime == module.LOOK_AGAIN
    at(tail, 5.1)
    assert tail.read() == []
    assert tail.reasons.total() == 1
    assert tail.cursor.mtime == tail.path.stat().st_mtime_ns


def test_an_empty_document_is_nothing_however_old(follow: Follow) -> None:
    tail = follow("session-a.json")
    tail.rewrite()
    for age in (0, 1, 100):
        at(tail, age)
        assert tail.read() == []
    assert tail.reasons == {}


def test_a_document_is_read_whole_at_each_change(follow: Follow) -> None:
    tail = follow("session-a.json")
    for data, found in [
        (document(1), [1]),
        (document(1, 2), [2]),
        (document(1, 2)[:100], []),
        (b"", []),
        (document(1, 2, 3), [3]),
        (document(1), []),
        (document(1, 4, summary="x"), [4]),
    ]:
        tail.rewrite(data)
        at(tail, 1)
        assert tail.read() == found
    assert tail.reasons == {}
    assert tail.readings[-1].bytes == tail.cursor.size == len(document(1, 4, summary="x"))


def test_a_pretty_document_with_a_mark_and_windows_line_ends(follow: Follow) -> None:
    tail = follow("session-a.json")
    tail.rewrite(b"\xef\xbb\xbf" + document(1).replace(b",", b",\r\n  ") + b"\r\n")
    assert tail.read() == [1]
    assert tail.reasons == {}


def test_a_document_just_written_is_looked_at_again(follow: Follow) -> None:
    """Within the resolution of file times it may change without another size or time."""
    tail = follow("session-a.json")
    tail.rewrite(document(1))
    at(tail, 0.01)
    tail.read()
    assert tail.cursor.mtime == module.LOOK_AGAIN
    at(tail, 1)
    tail.read()
    assert tail.cursor.mtime == tail.path.stat().st_mtime_ns


def test_a_document_over_the_limit_is_refused_unread(
    follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_DOCUMENT", 100)
    tail = follow("session-a.json")
    tail.rewrite(document(1))
    assert tail.read() == []
    assert tail.readings[-1].bytes == 0
    assert tail.reasons == {"line_too_long": 1}


# What is no regular file, and what cannot be read


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["FIFO", "folder"])
def test_a_reader_does_not_block_on_what_is_no_regular_file(
    follow: Follow, make: Callable[[Path], None]
) -> None:
    tail = follow()
    make(tail.path)
    with pytest.raises(OSError, match="not a regular file"):
        tail.step()


def test_a_reader_does_not_follow_a_link(follow: Follow) -> None:
    tail = follow()
    target = tail.path.with_name("target.jsonl")
    target.write_bytes(reply(1))
    tail.path.symlink_to(target)
    with pytest.raises(OSError, match="symbolic link") as caught:
        tail.step()
    assert caught.value.errno == errno.ELOOP


def test_links_pipes_and_folders_are_counted_once_and_the_others_read(scratch: Home) -> None:
    chats = scratch.chats()
    secret = scratch.root.parent / "secret.jsonl"
    secret.write_bytes(reply(1))
    (chats / "session-link.jsonl").symlink_to(secret)
    (chats / "session-dangling.json").symlink_to(chats / "nothing")
    os.mkfifo(chats / "session-pipe.jsonl")
    (chats / "session-folder.jsonl").mkdir()
    scratch.write(gemini("g-2"))
    for _ in range(3):
        scratch.scan()
    assert scratch.turns == 1
    errors = {reason: count for reason, count in scratch.stats.file_errors.items() if count}
    assert errors == {"link": 2, "not_regular": 1}


def test_a_link_that_becomes_a_file_is_read(scratch: Home) -> None:
    path = scratch.chats() / "session-a.jsonl"
    path.symlink_to(scratch.root / "nothing")
    scratch.scan()
    path.unlink()
    scratch.write(gemini())
    scratch.scan()
    assert scratch.turns == 1


def deny(monkeypatch: pytest.MonkeyPatch, path: Path, number: int) -> Callable[[], None]:
    """Make opening one file fail, and return what lets it succeed again."""
    real = os.open

    def fake(name: Any, *args: Any, **kwargs: Any) -> int:
        if os.fspath(name) == str(path):
            raise OSError(number, os.strerror(number))
        return real(name, *args, **kwargs)

    monkeypatch.setattr(os, "open", fake)
    return lambda: monkeypatch.setattr(os, "open", real)


@pytest.mark.parametrize(
    ("number", "reason"),
    OPEN_ERRORS,
)
def test_an_unreadable_file_waits_and_is_read_when_it_can_be(
    scratch: Home, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    path = scratch.write(gemini("g-1"))
    scratch.write(gemini("g-2"), name="session-b.jsonl")
    allow = deny(monkeypatch, path, number)
    scratch.scan()
    assert scratch.turns == 1, "the other file"
    assert scratch.stats.file_errors[reason] == 1
    assert scratch.stats.pending_bytes == 0
    allow()
    scratch.clock.now += 2_000
    scratch.scan()
    assert scratch.turns == 2
    assert scratch.stats.file_errors.total() == 1


class Failing(FileIO):
    """A file of which every read from the third buffer on is an I/O error, while `bad` says so."""

    bad = True
    reads = 0

    def readinto(self, buffer: Any) -> int | None:
        Failing.reads += 1
        if Failing.bad and Failing.reads > 2:
            raise OSError(errno.EIO, "Input/output error")
        return super().readinto(buffer)


def test_an_error_in_the_middle_of_a_file_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FileIO", Failing)
    monkeypatch.setattr(Failing, "reads", 0)
    monkeypatch.setattr(Failing, "bad", True)
    numbers = range(100, 120)
    with home(tmp_path, reader=Reader(buffer=1024)) as scratch:
        scratch.write(*(reply(number, model="m") for number in numbers))
        scratch.scan()
        assert 0 < scratch.turns < len(numbers)
        assert scratch.stats.file_errors["io"] == 1
        assert list(scratch.ledger.cursors()) == []
        monkeypatch.setattr(Failing, "bad", False)
        scratch.clock.now += 2_000
        snapshot = scratch.scan()
        assert snapshot.pairs["shop", "m"].tokens.input == sum(numbers)
        assert scratch.turns == len(numbers)
