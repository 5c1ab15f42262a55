"""A ledger is read while another process writes it, and never changed by that."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from exporter.ledger.errors import LedgerError
from exporter.ledger.meta import get_meta
from exporter.ledger.reading import open_for_reading
from exporter.ledger.schema import VERSION
from tests.support import gemini, home


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A ledger with one turn, closed cleanly."""
    with home(tmp_path) as scratch:
        scratch.write(gemini())
        scratch.scan()
    return scratch.path


def turns(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT count(*) FROM turn").fetchone()[0])


def test_a_writer_is_neither_kept_waiting_nor_missed(tmp_path: Path) -> None:
    with home(tmp_path) as scratch:
        scratch.write(gemini("g-1"))
        scratch.scan()
        with closing(open_for_reading(scratch.path)) as db:
            db.execute("BEGIN")
            assert turns(db) == 1
            scratch.write(gemini("g-2"))
            scratch.scan()
            assert turns(db) == 1
            db.execute("COMMIT")
            assert turns(db) == 2


def test_nothing_in_the_ledger_can_be_changed(ledger: Path) -> None:
    before = ledger.read_bytes()
    with closing(open_for_reading(ledger)) as db:
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            db.execute("DELETE FROM turn")
        db.execute("CREATE TEMP TABLE scratch AS SELECT * FROM turn")
    assert ledger.read_bytes() == before


def test_what_the_ledger_notes_about_itself_is_read_by_its_name(ledger: Path) -> None:
    with closing(open_for_reading(ledger)) as db:
        assert get_meta(db, "complete") == 1
        assert get_meta(db, "scraped") is None


def _gone(path: Path) -> None:
    path.unlink()


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _text(path: Path) -> None:
    path.write_bytes(b"no ledger at all, " * 500)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _version(version: int) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with closing(sqlite3.connect(path)) as db:
            db.execute(f"PRAGMA user_version = {version}")

    return change


@pytest.mark.parametrize(
    ("change", "fault", "remedy"),
    [
        (_gone, "there is no ledger at", "gemini-cli-exporter once"),
        (_empty, "is not a ledger", "--ledger.path"),
        (_text, "is damaged", "its copy takes its place"),
        (_folder, "cannot be read", "--ledger.path"),
        (_version(VERSION + 1), "newer release", "upgrade"),
        (_version(VERSION - 1), "older release", "gemini-cli-exporter once"),
    ],
    ids=["missing", "empty", "damaged", "folder", "newer", "older"],
)
def test_a_ledger_that_cannot_be_read_is_one_line_with_the_remedy(
    ledger: Path, change: Callable[[Path], None], fault: str, remedy: str
) -> None:
    change(ledger)
    with pytest.raises(LedgerError) as caught:
        open_for_reading(ledger)
    message = str(caught.value)
    assert fault in message
    assert remedy in message
    assert str(ledger) in message
    assert "\n" not in message


@pytest.fixture
def unwritable(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same in a folder where SQLite can make no file for its shared memory."""
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def refuse(database: str | Path, **options: Any) -> sqlite3.Connection:
        if str(database).endswith("?mode=ro"):
            error = sqlite3.OperationalError("unable to open database file")
            error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
            raise error
        return connect(database, **options)

    monkeypatch.setattr(sqlite3, "connect", refuse)
    return ledger


def test_a_closed_ledger_is_read_in_a_folder_that_cannot_be_written(unwritable: Path) -> None:
    with closing(open_for_reading(unwritable)) as db:
        assert turns(db) == 1


def test_turns_that_only_the_write_ahead_log_has_are_not_missed(unwritable: Path) -> None:
    unwritable.with_name("ledger.db-wal").write_bytes(b"turns")
    with pytest.raises(LedgerError, match=r"ledger\.db-wal is not empty: copy both files"):
        open_for_reading(unwritable)
