"""What was written just before a transcript went away is read through its open descriptor."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.transcripts.reader import Reader
from tests.support import Home, dumps, gemini, header, home


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Home]:
    with home(tmp_path) as opened:
        opened.write(header(), gemini("g-1", time="2026-11-30T20:59:00.000Z"))
        opened.scan()
        yield opened


def look(scratch: Home, path: Path) -> int:
    scratch.collector.look([str(path)])
    return scratch.turns


def test_an_append_just_before_the_deletion_is_counted(scratch: Home) -> None:
    path = scratch.write(gemini("g-2"))
    path.unlink()
    assert look(scratch, path) == 2
    assert list(scratch.ledger.cursors()) == []
    path = scratch.write(header("other"), gemini("g-3"))
    assert look(scratch, path) == 3


def test_a_scan_that_finds_the_folder_gone_reads_what_is_still_open(scratch: Home) -> None:
    scratch.write(gemini("g-2"))
    shutil.rmtree(scratch.root / "tmp" / "shop")
    scratch.scan()
    assert scratch.turns == 2
    assert list(scratch.ledger.cursors()) == []
    assert scratch.skipped == {}


def test_a_file_that_is_replaced_is_drained_and_the_new_one_read_from_its_start(
    scratch: Home,
) -> None:
    path = scratch.write(gemini("g-2"))
    new = path.with_suffix(".tmp-1")
    new.write_bytes(dumps(header()) + b"\n" + dumps(gemini("g-3")) + b"\n")
    new.rename(path)
    assert look(scratch, path) == 3
    scratch.write(gemini("g-4"))
    assert look(scratch, path) == 4


def test_the_last_state_of_a_deleted_document_is_counted(tmp_path: Path) -> None:
    with home(tmp_path) as scratch:
        path = scratch.chats() / "session-a.json"
        path.write_text(json.dumps({**header(), "messages": [gemini("g-1")]}))
        scratch.scan()
        path.write_text(json.dumps({**header(), "messages": [gemini("g-1"), gemini("g-2")]}))
        path.unlink()
        assert look(scratch, path) == 2


def test_a_descriptor_is_not_read_twice_for_an_unchanged_rename(scratch: Home) -> None:
    path = scratch.write()
    read = scratch.stats.read_bytes
    path.rename(path.with_name("session-b.jsonl"))
    scratch.scan()
    assert scratch.turns == 1
    assert scratch.stats.read_bytes - read == path.with_name("session-b.jsonl").stat().st_size


def test_only_the_files_read_last_are_kept_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with home(tmp_path, reader=Reader(max_open=3)) as scratch:
        for number in range(20):
            scratch.write(gemini(f"g-{number}"), name=f"session-{number}.jsonl")
        opened = len(os.listdir("/proc/self/fd"))
        scratch.scan()
        assert scratch.turns == 20
        assert len(os.listdir("/proc/self/fd")) == opened + 3
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_transcript_that_has_been_quiet_for_ten_minutes_is_closed(scratch: Home) -> None:
    path = scratch.write(gemini("g-2"))
    look(scratch, path)
    opened = len(os.listdir("/proc/self/fd"))
    inventory = scratch.collector._inventory
    for quiet, closed in ((599, 0), (601, 1)):
        scratch.collector._reader.keep_only(inventory.live(path.stat().st_mtime + quiet))
        assert len(os.listdir("/proc/self/fd")) == opened - closed
