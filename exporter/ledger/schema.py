"""The ledger's SQLite file: its tables, how it is opened, and what counts as damage."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

from .budgets import SLOT_MS
from .errors import DamagedLedgerError, LedgerError, LedgerUnavailableError

VERSION: Final = 3

_TABLES: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE root (id INTEGER PRIMARY KEY, path BLOB NOT NULL UNIQUE, scanned INTEGER);
CREATE TABLE project (
    id INTEGER PRIMARY KEY, slug TEXT NOT NULL, path TEXT NOT NULL, label TEXT NOT NULL,
    last_turn INTEGER NOT NULL DEFAULT 0, owner TEXT NOT NULL DEFAULT '',
    UNIQUE (slug, path, owner));
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
    shown INTEGER NOT NULL, PRIMARY KEY (family, project, model, tool)) WITHOUT ROWID;
CREATE TABLE spend_total (
    slot INTEGER, project INTEGER, rate INTEGER, input INTEGER NOT NULL, cached INTEGER NOT NULL,
    output INTEGER NOT NULL, thoughts INTEGER NOT NULL, tool INTEGER NOT NULL,
    PRIMARY KEY (slot, project, rate)) WITHOUT ROWID;
CREATE TABLE pushed (series TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""

_TABLE_NAMES: Final = frozenset(
    line.split()[2] for line in _TABLES.splitlines() if line.startswith("CREATE TABLE")
)

_MIGRATIONS: Final = {
    1: f"""
CREATE TABLE new_project (
    id INTEGER PRIMARY KEY, slug TEXT NOT NULL, path TEXT NOT NULL, label TEXT NOT NULL,
    last_turn INTEGER NOT NULL DEFAULT 0, owner TEXT NOT NULL DEFAULT '',
    UNIQUE (slug, path, owner));
INSERT INTO new_project SELECT id, slug, path, label, last_turn, '' FROM project;
DROP TABLE project;
ALTER TABLE new_project RENAME TO project;
ALTER TABLE series ADD COLUMN shown INTEGER NOT NULL DEFAULT 1;
CREATE TABLE spend_total (
    slot INTEGER, project INTEGER, rate INTEGER, input INTEGER NOT NULL, cached INTEGER NOT NULL,
    output INTEGER NOT NULL, thoughts INTEGER NOT NULL, tool INTEGER NOT NULL,
    PRIMARY KEY (slot, project, rate)) WITHOUT ROWID;
INSERT INTO spend_total
    SELECT time / {SLOT_MS} AS slot, project, rate, sum(input), sum(cached), sum(output),
        sum(thoughts), sum(tool)
    FROM turn WHERE rate != 0 GROUP BY slot, project, rate;
INSERT OR IGNORE INTO series
    SELECT 'unpriced', s.project, s.model, 0, s.born, 1
    FROM series s JOIN unpriced_total u ON u.project = s.project AND u.model = s.model
    WHERE s.family = 'usage';
""",
    2: """
UPDATE series SET shown = shown | 2;
CREATE TABLE pushed (series TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
""",
}
"""What makes each schema the next one."""

_DAMAGE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def connect(path: Path) -> sqlite3.Connection:
    """Open or create the ledger, readable by its owner only, and return a checked connection.

    Raises LedgerError where the file is damaged, of a newer schema or cannot be made.
    """
    try:
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600))
        db = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise unusable(path, error) from None
    try:
        _prepare(db)
        _check(db, path)
    except sqlite3.Error as error:
        db.close()
        raise translate(error, path) from None
    except LedgerError:
        db.close()
        raise
    return db


def translate(error: sqlite3.Error, path: Path) -> LedgerError | LedgerUnavailableError:
    """Return what an SQLite error means: damage is final, everything else may pass."""
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE:
        return _damaged(path, str(error))
    return LedgerUnavailableError(f"the ledger {path} cannot be written: {error}")


def unusable(path: Path, error: Exception) -> LedgerError:
    """Return the error for a ledger that cannot even be opened or made."""
    return LedgerError(
        f"cannot open the ledger {path}: {error}; choose another place with --ledger.path"
    )


def _damaged(path: Path, what: str) -> DamagedLedgerError:
    return DamagedLedgerError(
        f"the ledger {path} is damaged ({what}); start again, and its copy takes its place"
    )


def _prepare(db: sqlite3.Connection) -> None:
    # Where shared memory does not work WAL is refused, and the mode that is in force is returned.
    if db.execute("PRAGMA journal_mode=wal").fetchone()[0] != "wal":
        db.execute("PRAGMA journal_mode=truncate")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("PRAGMA journal_size_limit=16777216")
    db.execute("PRAGMA cache_size=-8192")


def _check(db: sqlite3.Connection, path: Path) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise LedgerError(
            f"the ledger {path} was written by a newer release (schema {version}, this one knows "
            f"{VERSION}); upgrade gemini-cli-exporter or choose another --ledger.path"
        )
    found = _tables(db)
    if version == 0 and not found:
        db.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {VERSION}; COMMIT;")
        return
    verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise _damaged(path, verdict)
    while version in _MIGRATIONS:
        steps, version = _MIGRATIONS[version], version + 1
        db.executescript(f"BEGIN IMMEDIATE; {steps} PRAGMA user_version = {version}; COMMIT;")
        found = _tables(db)
    if missing := sorted(_TABLE_NAMES - found):
        raise _damaged(path, f"no table {missing[0]}")


def _tables(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}


def size_on_disk(path: Path) -> int:
    """Return the bytes of a ledger on disk, its write-ahead log included."""
    total = 0
    for name in (path, path.with_name(path.name + "-wal")):
        try:
            total += name.stat().st_size
        except FileNotFoundError:
            continue
    return total
