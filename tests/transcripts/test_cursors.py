"""Cursors of very many transcripts in little memory, and what is given up where they are more."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from exporter.ledger.model import FileCursor
from exporter.transcripts import inventory
from exporter.transcripts.cursors import Cursors
from exporter.transcripts.reader import LOOK_AGAIN
from tests.support import audited, gemini, header, home

MOST = (1 << 63) - 1
CURSOR = FileCursor("/a", "tmp/shop/x", 1, MOST, MOST, LOOK_AGAIN, 7, b"12345678", b"context")
KEY = ("/a", "tmp/shop/x")


def test_a_cursor_comes_back_as_it_was_put() -> None:
    cursors = Cursors(["/a"], [CURSOR])
    assert cursors.get(KEY) == CURSOR
    assert cursors.get(("/a", "tmp/shop/y")) is None
    assert list(cursors) == [KEY]
    cursors.pop(KEY)
    cursors.pop(KEY)
    assert list(cursors) == []


def test_cursors_of_other_roots_are_left_out() -> None:
    assert list(Cursors(["/b"], [CURSOR])) == []


def test_beyond_the_limit_a_cursor_says_to_read_from_the_start_once_it_changes() -> None:
    bare = FileCursor("/a", "tmp/shop/x", 1, MOST, MOST, LOOK_AGAIN)
    assert Cursors(["/a"], [CURSOR], limit=10).get(KEY) == bare


def test_a_cursor_in_the_place_of_an_older_one_needs_no_more_room() -> None:
    cursors = Cursors(["/a"], [CURSOR], limit=70)
    for offset in range(8, 100):
        moved = FileCursor("/a", "tmp/shop/x", 1, MOST, MOST, LOOK_AGAIN, offset, b"", b"context")
        cursors.put(moved)
        assert cursors.get(KEY) == moved


def test_without_its_context_a_transcript_is_read_again_and_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "Cursors", partial(Cursors, limit=0))
    with home(tmp_path) as scratch:
        path = scratch.write(header(), gemini("g-1"), gemini("g-2", 200))
        scratch.scan()
        with audited() as events:
            scratch.scan()
        assert str(path) not in [name for _, name in events]
        scratch.restart()
        size = path.stat().st_size
        scratch.write(gemini("g-3", 300))
        scratch.scan()
        assert scratch.turns == 3
        assert scratch.stats.read_bytes > size
