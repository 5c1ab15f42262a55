"""Rare courses of events, each of which once lost or doubled something."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.transcripts import lines, salvage
from exporter.transcripts import reader as module
from exporter.transcripts.collector import Collector
from exporter.transcripts.reader import Reader
from exporter.transcripts.records import parse_line
from tests.support import Home, dumps, gemini, header, home, user

FIVE, FOUR = "2026-11-30T20:00:05.000Z", "2026-11-30T20:00:04.000Z"


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Home]:
    with home(tmp_path) as opened:
        yield opened


@pytest.fixture
def stepwise(tmp_path: Path) -> Iterator[Home]:
    """A home whose files are read in parts of 2 kB."""
    with home(tmp_path, reader=Reader(buffer=1024, budget=2048)) as opened:
        yield opened


def test_a_stop_between_two_parts_of_a_file_loses_nothing(stepwise: Home) -> None:
    stepwise.write(*(gemini(f"g-{number}") for number in range(50)))
    stop = threading.Event()
    parts = Collector(
        [str(stepwise.root)],
        stepwise.ledger,
        stepwise.stats,
        stepwise.clock,
        reader=Reader(buffer=1024, budget=2048),
        stop=stop,
        progress=lambda *_: stop.set(),
    )
    with closing(parts):
        parts.scan()
    assert 0 < stepwise.turns < 50
    stepwise.restart()
    stepwise.scan()
    assert stepwise.turns == 50


def test_an_io_error_in_the_second_part_of_a_file_loses_nothing(
    stepwise: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []

    class Failing(FileIO):
        def readinto(self, buffer: Any) -> int:
            reads.append(1)
            if len(reads) > 5:
                raise OSError(errno.EIO, "half-way")
            return super().readinto(buffer) or 0

    monkeypatch.setattr(module, "FileIO", Failing)
    stepwise.write(*(gemini(f"g-{number}") for number in range(50)))
    stepwise.scan()
    assert 0 < stepwise.turns < 50
    monkeypatch.undo()
    stepwise.clock.now += 400_000
    stepwise.scan()
    assert stepwise.turns == 50


@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
def test_more_than_one_part_is_drained_from_a_file_that_is_gone(
    stepwise: Home, replaced: bool
) -> None:
    path = stepwise.write(gemini("g-0"))
    stepwise.scan()
    stepwise.write(*(gemini(f"g-{number}") for number in range(1, 50)))
    path.unlink()
    if replaced:
        path.write_bytes(dumps(gemini("new")) + b"\n")
    stepwise.scan()
    assert stepwise.turns == 50 + replaced


def test_a_file_that_is_replaced_by_a_link_is_drained(scratch: Home) -> None:
    path = scratch.write(gemini("g-0"))
    scratch.scan()
    scratch.write(gemini("g-1"))
    path.unlink()
    path.symlink_to("nowhere")
    scratch.scan()
    assert scratch.turns == 2


@pytest.mark.parametrize("inner", [b'{"$set":', b'{"messages":[{"id":5,"$set":'])
def test_patches_in_patches_of_any_depth_are_refused_quickly(inner: bytes) -> None:
    """Around the depth at which the decoder itself gives up."""
    closing_marks = b"}" if inner.count(b"[") == 0 else b"}]}"
    for depth in range(300, 1100, 1 if len(inner) < 10 else 25):
        parse_line(b'{"id":5,"$set":' + inner * depth + b"{}" + closing_marks * depth + b"}")


def test_a_reply_without_tokens_of_its_own_ends_no_echo(scratch: Home) -> None:
    """A and B both got their usage from the streams after them: two single chunks, two replies."""
    scratch.write(
        header(),
        *(gemini("A", None), gemini("A", 100, 0, thoughts=50)),
        *(gemini("B", None), gemini("B", 100, 5, thoughts=60)),
        gemini("C", None),
    )
    scratch.scan()
    assert scratch.turns == 2


def test_a_clock_that_steps_back_does_not_hide_an_echo(scratch: Home) -> None:
    first = gemini("A", 100, 0, thoughts=5, time=FIVE)
    scratch.write(header(), gemini("A", None, time=FIVE), first)
    scratch.write(gemini("B", 100, 5, thoughts=50, time=FOUR))
    scratch.scan()
    assert scratch.turns == 1


def test_a_clock_that_steps_back_does_not_keep_an_old_model(scratch: Home) -> None:
    scratch.write(header(), gemini("A", 1, model="a", time=FIVE))
    scratch.write(gemini("B", 2, model="b", time=FOUR), gemini("C", 3, model=None, time=FOUR))
    turns = {model: total.turns for (_, model), total in scratch.scan().pairs.items()}
    assert turns == {"a": 1, "b": 2}


def test_a_reply_glued_to_a_torn_message_that_was_passed_over_is_counted(scratch: Home) -> None:
    long = {**user(), "content": [{"inlineData": {"data": "A" * 3_000_000}}]}
    scratch.write(header(), dumps(long)[:2_000_000] + dumps(gemini("g")) + b"\n")
    scratch.scan()
    assert scratch.turns == 1
    assert scratch.skipped == {"bad_json": 1}


def test_a_session_that_comes_back_without_its_header_is_the_same(scratch: Home) -> None:
    name = "session-2026-11-30T20-00-5e551001.jsonl"
    path = scratch.write(header("5e551001-1111-2222"), gemini("g-1"), name=name)
    scratch.scan()
    path.unlink()
    scratch.scan()
    scratch.write(gemini("g-2"), name=name)
    assert scratch.scan().activity["shop"].sessions == 1


def test_a_call_that_turns_out_to_have_failed_is_followed(scratch: Home) -> None:
    scratch.write(header(), gemini(calls=[("c", "t", "success")]))
    scratch.scan()
    scratch.write(gemini(calls=[("c", "t", "error")]))
    (total,) = scratch.scan().tools.values()
    assert (total.calls, total.errors) == (1, 1)


@pytest.mark.parametrize("seconds", [0, 4_102_444_800], ids=["1970", "2100"])
def test_an_impossible_file_time_is_not_an_event_time(scratch: Home, seconds: int) -> None:
    path = scratch.write(header(), gemini(time=""))
    os.utime(path, (seconds, seconds))
    assert scratch.scan().activity["shop"].last_turn == scratch.clock.now


@pytest.mark.parametrize("ahead", [1, 400_000, 900_000])
def test_a_document_written_in_this_very_millisecond_is_looked_at_again(
    scratch: Home, ahead: int
) -> None:
    path = scratch.write(b'{"messages":[', name="session-a.json")
    stamp = scratch.clock.now * 1_000_000 + ahead
    os.utime(path, ns=(stamp, stamp))
    scratch.scan()
    assert scratch.skipped == {}


def test_a_bad_record_of_a_document_is_counted_once_however_often_it_is_rewritten(
    scratch: Home,
) -> None:
    bad = {**gemini(), "tokens": {"input": "x"}}
    for number in range(5):
        document = {**header(), "messages": [bad], "number": number}
        (scratch.chats() / "session-a.json").write_bytes(dumps(document))
        scratch.clock.now += 60_000
        scratch.scan()
    assert scratch.skipped == {"bad_tokens": 1}


def test_a_folder_that_cannot_be_listed_once_keeps_its_cursors(
    scratch: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch.write(header(), gemini())
    scratch.scan()
    scandir = os.scandir

    def failing(path: str) -> Any:
        if path.endswith("chats"):
            raise PermissionError(errno.EACCES, "no", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    scratch.scan()
    monkeypatch.undo()
    assert len(list(scratch.ledger.cursors())) == 1
    assert scratch.stats.file_errors["permission"] > 0


def test_a_linked_project_folder_is_refused_and_counted_once(scratch: Home, tmp_path: Path) -> None:
    (tmp_path / "outside" / "chats").mkdir(parents=True)
    (scratch.root / "tmp").mkdir(parents=True)
    (scratch.root / "tmp" / "shop").symlink_to(tmp_path / "outside")
    for _ in range(3):
        scratch.scan()
    assert scratch.stats.file_errors["link"] == 1


def test_a_total_of_an_odd_type_costs_nothing() -> None:
    record = parse_line(dumps({**gemini(), "tokens": {"input": 5, "total": 6.5}})).record
    assert record is not None
    assert record.tokens is not None


@pytest.mark.parametrize("total", [2**64, -(2**63) - 1, 10**400])
def test_a_total_beyond_all_bounds_is_no_total(scratch: Home, total: int) -> None:
    reply = gemini()
    reply["tokens"]["total"] = total
    scratch.write(header(), reply, gemini("g-2"))
    scratch.scan()
    assert scratch.turns == 2


@pytest.mark.parametrize("seconds", [-13_569_465_600, 13_569_465_600], ids=["1540", "2400"])
def test_a_file_time_beyond_63_bits_is_stored(scratch: Home, seconds: int) -> None:
    path = scratch.write(header(), gemini())
    os.utime(path, (seconds, seconds))
    scratch.scan()
    read = scratch.stats.read_bytes
    scratch.scan()
    assert (scratch.turns, scratch.stats.read_bytes) == (1, read)


@pytest.mark.parametrize("field", ["id", "model", "timestamp"])
def test_a_text_of_a_megabyte_is_no_name(scratch: Home, field: str) -> None:
    scratch.write(header(), {**gemini(), field: "x" * 1_000_000}, gemini("g-2"))
    scratch.scan()
    assert scratch.turns == (1 if field == "id" else 2)
    assert scratch.skipped["bad_shape"] == 1


def test_an_endless_line_lets_the_others_have_their_turn(
    stepwise: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_MAX_DROPPED", 100_000)
    monkeypatch.setattr(stepwise.collector._reader, "_max_line", 4096)
    stepwise.write(b"x" * 1_000_000 + b"\n", gemini("g-1"))
    stepwise.scan()
    assert stepwise.turns == 1
    assert 9 <= stepwise.skipped["line_too_long"] <= 11


@given(
    st.lists(st.sampled_from([b"\\", b"\\\\", b"\\ud83d", b"\\n", b"a", b"\xc3\xa9"]), max_size=60)
)
def test_a_repair_in_pieces_is_the_repair_of_the_whole(parts: list[bytes]) -> None:
    text = b"".join(parts) + b"\\ud800"
    whole = salvage._repaired(text, ValueError("UTF-8"))
    with pytest.MonkeyPatch.context() as patch:
        for piece in (8, 16, 34):
            patch.setattr(salvage, "_PIECE", piece)
            assert salvage._repaired(text, ValueError("UTF-8")) == whole
