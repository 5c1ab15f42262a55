"""A ledger of version 1 becomes one of version 2 with all it holds, or stays as it was."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from exporter.ledger.audience import EVERYBODY, Audience
from exporter.ledger.budgets import Calendar
from exporter.ledger.errors import LedgerError, LedgerUnavailableError
from exporter.ledger.model import Batch, Project, Role, TokenUsage, Turn, message_key
from exporter.ledger.recovery import copy_of
from exporter.ledger.schema import VERSION
from exporter.ledger.store import Ledger
from exporter.outputs.prometheus import OPENMETRICS, Exposition
from tests.real import RealSet
from tests.support import BOOK, Clock, home

connect = sqlite3.connect
"""As it is while a test sets limits to the connections of the ledger."""

REAL = "0.8.2+0.22.4+0.28.2+0.36.0+0.45.2+0.61.0-two-projects-years"

TABLES_1 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE root (id INTEGER PRIMARY KEY, path BLOB NOT NULL UNIQUE, scanned INTEGER);
CREATE TABLE project (
    id INTEGER PRIMARY KEY, slug TEXT NOT NULL, path TEXT NOT NULL, label TEXT NOT NULL,
    last_turn INTEGER NOT NULL DEFAULT 0, UNIQUE (slug, path));
CREATE TABLE model (id INTEGER PRIMARY KEY, label TEXT NOT NULL UNIQUE);
CREATE TABLE tool (id INTEGER PRIMARY KEY, label TEXT NOT NULL UNIQUE);
CREATE TABLE session (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, project INTEGER NOT NULL,
    main INTEGER NOT NULL, last_turn INTEGER NOT NULL);
CREATE TABLE rate (
    id INTEGER PRIMARY KEY, model TEXT NOT NULL, input INTEGER NOT NULL, cached INTEGER NOT NULL,
    output INTEGER NOT NULL, source TEXT NOT NULL, UNIQUE (model, input, cached, output, source));
CREATE TABLE price (model INTEGER PRIMARY KEY, day INTEGER NOT NULL, rate INTEGER NOT NULL);
CREATE TABLE turn (
    id BLOB PRIMARY KEY, session INTEGER NOT NULL, project INTEGER NOT NULL, model INTEGER NOT NULL,
    time INTEGER NOT NULL, input INTEGER NOT NULL, cached INTEGER NOT NULL, output INTEGER NOT NULL,
    thoughts INTEGER NOT NULL, tool INTEGER NOT NULL, rate INTEGER NOT NULL, role INTEGER NOT NULL
    ) WITHOUT ROWID;
CREATE TABLE tool_call (
    message BLOB, call INTEGER, project INTEGER NOT NULL, model INTEGER NOT NULL,
    tool INTEGER NOT NULL, status INTEGER NOT NULL, PRIMARY KEY (message, call)) WITHOUT ROWID;
CREATE TABLE usage_total (
    project INTEGER, model INTEGER, rate INTEGER, turns INTEGER NOT NULL, input INTEGER NOT NULL,
    cached INTEGER NOT NULL, output INTEGER NOT NULL, thoughts INTEGER NOT NULL,
    tool INTEGER NOT NULL, PRIMARY KEY (project, model, rate)) WITHOUT ROWID;
CREATE TABLE unpriced_total (
    project INTEGER, model INTEGER, tokens INTEGER NOT NULL,
    PRIMARY KEY (project, model)) WITHOUT ROWID;
CREATE TABLE tool_total (
    project INTEGER, model INTEGER, tool INTEGER, calls INTEGER NOT NULL, errors INTEGER NOT NULL,
    cancellations INTEGER NOT NULL, PRIMARY KEY (project, model, tool)) WITHOUT ROWID;
CREATE TABLE prompt_total (
    model INTEGER, bucket INTEGER, turns INTEGER NOT NULL,
    PRIMARY KEY (model, bucket)) WITHOUT ROWID;
CREATE TABLE file (
    root INTEGER, path BLOB, device INTEGER NOT NULL, inode INTEGER NOT NULL, size INTEGER NOT NULL,
    mtime INTEGER NOT NULL, "offset" INTEGER NOT NULL, fingerprint BLOB NOT NULL,
    context BLOB NOT NULL, PRIMARY KEY (root, path)) WITHOUT ROWID;
CREATE TABLE series (
    family TEXT, project INTEGER, model INTEGER, tool INTEGER, born INTEGER NOT NULL,
    PRIMARY KEY (family, project, model, tool)) WITHOUT ROWID;
PRAGMA user_version = 1;
"""
"""The schema as release 0.1 made it."""

NEW_IN_2 = {"meta": "key NOT IN ('scraped', 'last_run')", "series": "family != 'unpriced'"}
"""Which rows of a table version 1 had: those of which this is true."""

KILLED = """
import os, signal, sqlite3, sys
from pathlib import Path
from exporter.ledger import schema

class Connection(sqlite3.Connection):
    def executescript(self, script):
        self.left = int(sys.argv[2])
        self.set_progress_handler(self.step, 1)
        return super().executescript(script)

    def step(self):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)

connect = sqlite3.connect
sqlite3.connect = lambda *args, **options: connect(*args, factory=Connection, **options)
schema.connect(Path(sys.argv[1]))
"""
"""Opens a ledger, and is killed after so many steps of SQLite's machine within the migration."""


def as_version_1(new: Path, old: Path) -> None:
    """Write what a ledger holds as version 1 would have kept it."""
    with closing(connect(old)) as db:
        db.execute("PRAGMA journal_mode=wal")
        db.executescript(TABLES_1)
        db.execute("ATTACH ? AS new", (str(new),))
        for (table,) in db.execute("SELECT name FROM main.sqlite_schema WHERE type = 'table'"):
            rows = db.execute(f"SELECT name FROM pragma_table_info('{table}', 'main')")
            names = ", ".join(f'"{name}"' for (name,) in rows)
            where = NEW_IN_2.get(table, "1")
            db.execute(f"INSERT INTO {table} SELECT {names} FROM new.{table} WHERE {where}")
        db.commit()


def turn(message: str, time: int, model: str = "gemini-2.5-flash", echo: str = "") -> Turn:
    usage = TokenUsage(100, 50, 10, 5, 1)
    shop, first = Project("shop", "/home/ana/shop"), message_key(echo) if echo else None
    return Turn(message_key(message), "s-1", Role.MAIN, shop, model, time, usage, first)


@pytest.fixture(scope="module")
def counted(
    real_sets: dict[str, RealSet], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """One ledger in both versions: years of two projects, turns without a price, an echo."""
    folder = tmp_path_factory.mktemp("migration")
    with home(folder, real_sets[REAL].gemini) as scratch:
        scratch.scan()
        now = scratch.clock.now
        scratch.ledger.record(Batch(turns=[turn("a", now), turn("b", now, "nobody-prices-this")]))
        scratch.ledger.record(Batch(turns=[turn("c", now, echo="a"), turn("d", now - 60_000)]))
    old = folder / "version-1.db"
    as_version_1(scratch.path, old)
    return old, scratch.path


@pytest.fixture
def old(counted: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the ledger of version 1, where a test may do with it what it likes."""
    return Path(shutil.copy(counted[0], tmp_path / "ledger.db"))


def content(path: Path) -> list[str]:
    """Return all that a ledger holds, as SQL, and its version."""
    with closing(connect(path)) as db:
        return [*db.iterdump(), str(version(path))]


def version(path: Path) -> int:
    with closing(connect(path)) as db:
        found: int = db.execute("PRAGMA user_version").fetchone()[0]
        return found


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(connect(path)) as db:
        return db.execute(query).fetchall()


def limited(
    monkeypatch: pytest.MonkeyPatch, limit: Callable[[sqlite3.Connection], object]
) -> list[sqlite3.Connection]:
    """Let `limit` do something with each connection that is opened; return them."""
    opened: list[sqlite3.Connection] = []

    def limiting(*args: object, **options: object) -> sqlite3.Connection:
        opened.append(connect(*args, **options))  # type: ignore[call-overload]
        limit(opened[-1])
        return opened[-1]

    monkeypatch.setattr("exporter.ledger.schema.sqlite3.connect", limiting)
    return opened


def test_every_total_and_gauge_is_the_same_as_if_version_2_had_counted(
    old: Path, counted: tuple[Path, Path]
) -> None:
    clock, calendar = Clock(), Calendar()
    with (
        closing(Ledger(old, BOOK, clock)) as migrated,
        closing(Ledger(counted[1], BOOK, clock)) as fresh,
    ):
        ours, theirs = migrated.snapshot(), fresh.snapshot()
        assert ours == theirs
        assert ours.ledger_turns > 10
        assert migrated.complete
        assert (migrated.created, list(migrated.cursors())) == (
            fresh.created,
            list(fresh.cursors()),
        )
        spans = calendar.spans(clock())
        assert migrated.spending(spans) == fresh.spending(spans)
        assert any(migrated.spending(spans).last_hour.values())
        assert migrated.starts() == fresh.starts()
    assert version(old) == VERSION == 3


def test_what_was_spent_by_time_is_added_up_from_the_turns(
    old: Path, counted: tuple[Path, Path]
) -> None:
    Ledger(old, BOOK, Clock()).close()
    # What was counted and taken back leaves a row of zeros, which nothing is read from.
    query = "SELECT * FROM spend_total WHERE input + cached + output + thoughts + tool > 0"
    assert sorted(rows(old, query)) == sorted(rows(counted[1], query))
    assert rows(old, query)


def test_every_series_of_an_old_ledger_counts_as_shown(old: Path) -> None:
    """Scrapers have seen its values: back to 0 would be a reset."""
    with closing(Ledger(old, BOOK, Clock())) as ledger:
        for audience in Audience:
            ledger.asked(audience)
            ledger.delivered(audience, ())
        ledger.tend()
        assert not any(ledger.snapshot().held.values())
    assert rows(old, "SELECT DISTINCT shown FROM series") == [(EVERYBODY,)]
    assert rows(old, "SELECT project, model FROM series WHERE family = 'unpriced'") == rows(
        old, "SELECT project, model FROM unpriced_total"
    )


def test_its_exposition_has_a_start_for_every_series(old: Path, tmp_path: Path) -> None:
    with home(tmp_path) as scratch:
        assert scratch.path == old
        text = Exposition(scratch.ledger, scratch.stats, scratch.clock, created=True).render(
            OPENMETRICS
        )
    assert b"gemini_cli_unpriced_tokens_created{" in text


def test_counting_goes_on_where_it_was(old: Path, counted: tuple[Path, Path]) -> None:
    clock = Clock()
    with closing(Ledger(old, BOOK, clock)) as ledger:
        before = ledger.snapshot().ledger_turns
        known = [turn("a", clock()), turn("d", clock())]
        assert ledger.record(Batch(turns=[*known, turn("e", clock())])) == [turn("e", clock())]
        assert ledger.snapshot().ledger_turns == before + 1


def test_a_damaged_ledger_may_be_replaced_by_a_copy_of_version_1(old: Path) -> None:
    shutil.copy(old, copy_of(old))
    os.truncate(old, old.stat().st_size // 2)
    with closing(Ledger(old, BOOK, Clock())) as ledger:
        assert ledger.snapshot().ledger_turns > 10
    assert version(old) == VERSION


def test_a_second_start_changes_nothing_any_more(old: Path) -> None:
    Ledger(old, BOOK, Clock()).close()
    once = content(old)
    Ledger(old, BOOK, Clock()).close()
    assert content(old) == once


# Interrupted


def test_a_migration_that_fails_anywhere_leaves_version_1_and_no_open_transaction(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, clock, steps = content(old), Clock(), 0
    left = 0

    def interrupt() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    opened = limited(monkeypatch, lambda db: db.set_progress_handler(interrupt, 1))
    failures = 0
    while version(old) == 1:
        steps += 150
        left = steps
        try:
            with closing(Ledger(old, BOOK, clock)):
                left = 1 << 30
        except LedgerUnavailableError:
            failures += 1
            with pytest.raises(sqlite3.ProgrammingError, match="closed"):
                opened[-1].execute("SELECT 1")
            if version(old) == 1:
                assert content(old) == before
    assert failures > 5
    left = 1 << 30
    with closing(Ledger(old, BOOK, clock)) as ledger:
        assert ledger.snapshot().ledger_turns > 10


@pytest.mark.parametrize("steps", [10, 400, 1_500])
def test_a_migration_that_is_killed_leaves_version_1(old: Path, steps: int) -> None:
    before = content(old)
    code = subprocess.run([sys.executable, "-c", KILLED, str(old), str(steps)], check=False)
    assert code.returncode == -signal.SIGKILL
    assert content(old) == before
    with closing(Ledger(old, BOOK, Clock())) as ledger:
        assert ledger.snapshot().ledger_turns > 10


def test_a_full_disk_in_the_middle_is_waited_for_and_no_damage(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(old)
    pages = rows(old, "PRAGMA page_count")[0][0]
    with monkeypatch.context() as full:
        limited(full, lambda db: db.execute(f"PRAGMA max_page_count = {pages}"))
        with pytest.raises(LedgerUnavailableError, match="full"):
            Ledger(old, BOOK, Clock())
    assert content(old) == before
    assert [path.name for path in old.parent.glob("*.damaged*")] == []
    Ledger(old, BOOK, Clock()).close()
    assert version(old) == VERSION


def test_a_ledger_of_a_later_version_is_refused_and_left_alone(old: Path) -> None:
    with closing(connect(old)) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = content(old)
    with pytest.raises(LedgerError, match=f"schema {VERSION + 1}, this one knows {VERSION}"):
        Ledger(old, BOOK, Clock())
    assert content(old) == before


def test_what_scrapers_have_not_seen_in_version_2_stays_held_from_them_only(old: Path) -> None:
    """Nobody was pushed to then, so no receiver waits for a 0."""
    Ledger(old, BOOK, Clock()).close()
    with closing(connect(old)) as db:
        db.execute("DROP TABLE pushed")
        db.execute("UPDATE series SET shown = family != 'tool'")
        db.execute("PRAGMA user_version = 2")
        db.commit()
    with closing(Ledger(old, BOOK, Clock())) as ledger:
        held = ledger.snapshot().held
        assert {family for family, *_ in held[Audience.SCRAPERS]} == {"tool"}
        assert not held[Audience.RECEIVER]
    assert version(old) == VERSION
    found = rows(old, "SELECT DISTINCT family = 'tool', shown FROM series ORDER BY 1")
    assert found == [(0, EVERYBODY), (1, Audience.RECEIVER)]
