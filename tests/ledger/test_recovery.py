"""A damaged ledger is replaced by its daily copy and caught up; nothing else is damage."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from exporter.ledger import recovery
from exporter.ledger.errors import DamagedLedgerError, LedgerError, LedgerUnavailableError
from exporter.ledger.recovery import copy_of
from exporter.ledger.store import Ledger
from tests.support import BOOK, Home, gemini, header, home

HOUR = 3_600_000
DAY = 24 * HOUR


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Home]:
    """A home with three turns: two of them in the copy, the first one's transcript deleted."""
    with home(tmp_path) as opened:
        first = opened.write(header("one"), gemini("g-1"), name="session-1.jsonl")
        opened.write(header("two"), gemini("g-2"), name="session-2.jsonl")
        opened.scan()
        assert not copy_of(opened.path).exists(), "the first copy waits for an hour"
        opened.clock.now += HOUR
        opened.scan()
        first.unlink()
        opened.write(gemini("g-3"), name="session-2.jsonl")
        opened.scan()
        yield opened


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwrite_a_page(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\xa5" * 4096)


def drop_a_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE turn")
        db.commit()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": truncate,
    "page overwritten": overwrite_a_page,
    "no database": lambda path: path.write_bytes(b"notes" * 10_000),
    "empty": lambda path: path.write_bytes(b""),
    "table missing": drop_a_table,
    "header overwritten": lambda path: path.write_bytes(b"\0" * 100 + path.read_bytes()[100:]),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_a_damaged_ledger_is_replaced_by_its_copy_and_caught_up(
    scratch: Home, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    before = scratch.ledger.snapshot()
    scratch.close()
    damage(scratch.path)
    damaged = scratch.path.read_bytes()
    scratch.clock.now += 1000
    scratch.start()
    assert "the ledger was replaced" in caplog.text
    assert not scratch.ledger.complete, "a scrape must not see a half-caught-up ledger"
    after = scratch.scan()
    assert scratch.ledger.complete
    assert after.pairs == before.pairs, "g-1 comes from the copy, g-3 from its transcript"
    assert scratch.ledger.created == scratch.clock.now, "the gauge tells that it was replaced"
    (aside,) = [path for path in scratch.path.parent.glob("*.damaged-*") if "-wal" not in path.name]
    assert aside.read_bytes() == damaged


def test_without_a_copy_the_transcripts_that_exist_are_counted_again(scratch: Home) -> None:
    scratch.close()
    copy_of(scratch.path).unlink()
    truncate(scratch.path)
    scratch.start()
    scratch.scan()
    assert scratch.turns == 2


def test_a_damaged_copy_is_not_used(scratch: Home, caplog: pytest.LogCaptureFixture) -> None:
    scratch.close()
    truncate(scratch.path)
    truncate(copy_of(scratch.path))
    scratch.start()
    scratch.scan()
    assert "the copy is damaged too" in caplog.text
    assert scratch.turns == 2


def test_a_kill_in_the_middle_of_a_replacement_loses_nothing(scratch: Home) -> None:
    scratch.close()
    assert recovery._copy_is_whole(scratch.path)
    recovery._move_aside(scratch.path, scratch.clock())  # and killed here
    scratch.start()
    assert not scratch.ledger.complete
    scratch.scan()
    assert scratch.turns == 3


def test_catching_up_goes_on_after_a_crash(scratch: Home) -> None:
    scratch.close()
    truncate(scratch.path)
    scratch.start()
    scratch.restart()
    assert not scratch.ledger.complete
    scratch.scan()
    scratch.restart()
    assert scratch.ledger.complete


def test_the_copy_is_made_daily_if_something_has_changed(scratch: Home) -> None:
    copy = copy_of(scratch.path)
    first = copy.stat()
    assert stat.S_IMODE(first.st_mode) == 0o600
    scratch.clock.now += DAY - 1
    scratch.scan()
    assert copy.stat() == first
    scratch.restart()
    scratch.clock.now += 1
    scratch.scan()
    second = copy.stat()
    assert second.st_mtime_ns == first.st_mtime_ns + DAY * 10**6
    scratch.clock.now += DAY
    scratch.scan()
    assert copy.stat() == second, "nothing has changed since"
    scratch.write(gemini("g-4"))
    scratch.scan()
    assert copy.stat() != second
    with closing(sqlite3.connect(copy)) as db:
        assert db.execute("SELECT count(*) FROM turn").fetchone() == (4,)


def test_a_copy_that_cannot_be_written_is_said_and_tried_again_after_an_hour(
    scratch: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = []

    def fail(*_: object) -> None:
        attempts.append(scratch.clock.now)
        raise LedgerUnavailableError("disk full")

    monkeypatch.setattr("exporter.ledger.recovery.make_copy", fail)
    scratch.clock.now += DAY
    scratch.write(gemini("g-4"))
    for _ in range(3):
        scratch.scan()
        scratch.clock.now += 1_800_000
    assert len(attempts) == 2
    assert "no copy of the ledger" in caplog.text
    assert scratch.turns == 4


def test_a_busy_file_is_not_damage(scratch: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch.close()
    real_connect = sqlite3.connect

    def impatient(*args: object, **kwargs: object) -> sqlite3.Connection:
        return real_connect(*args, **{**kwargs, "timeout": 0.01})  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr("exporter.ledger.schema.sqlite3.connect", impatient)
    with closing(real_connect(scratch.path)) as other:
        other.execute("PRAGMA locking_mode=exclusive")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LedgerUnavailableError, match="locked"):
            Ledger(scratch.path, BOOK, scratch.clock)
    assert not list(scratch.path.parent.glob("*.damaged*"))
    monkeypatch.undo()
    scratch.start()
    assert scratch.turns == 3


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_CORRUPT, DamagedLedgerError),
        (sqlite3.SQLITE_NOTADB, DamagedLedgerError),
        (sqlite3.SQLITE_CORRUPT | 1 << 8, DamagedLedgerError),
        (sqlite3.SQLITE_FULL, LedgerUnavailableError),
        (sqlite3.SQLITE_IOERR_SHMSIZE, LedgerUnavailableError),
        (sqlite3.SQLITE_READONLY, LedgerUnavailableError),
        (sqlite3.SQLITE_BUSY, LedgerUnavailableError),
        (sqlite3.SQLITE_CANTOPEN, LedgerUnavailableError),
    ],
)
def test_only_corruption_is_damage(code: int, kind: type[Exception]) -> None:
    from exporter.ledger.schema import translate

    error = sqlite3.DatabaseError("?")
    error.sqlite_errorcode = code
    assert type(translate(error, Path("ledger.db"))) is kind


def test_errors_that_pass_are_not_ledger_errors() -> None:
    assert not issubclass(LedgerUnavailableError, LedgerError)
