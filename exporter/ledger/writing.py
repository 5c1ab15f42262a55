"""Writes what one transaction adds to the ledger's sums."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Final

from .audience import Audience
from .counting import Counting
from .meta import get_meta

_ANSWERED: Final = {Audience.SCRAPERS: "scraped", Audience.RECEIVER: "pushed"}
"""Keys of the times at which those who were answered asked for the first time."""


def write_sums(
    db: sqlite3.Connection, counting: Counting, prices: Mapping[int, tuple[int, int]]
) -> None:
    """Add the sums, and note the latest turns and prices; `prices` are those known before."""
    for name, table in (*counting.sums.tables(), ("spend_total", counting.sums.spend)):
        db.executemany(_UPSERTS[name], [(*key, *row) for key, row in table.items()])
    db.executemany(
        "UPDATE session SET last_turn = max(last_turn, ?) WHERE id = ?",
        [(time, session) for session, (_, time) in counting.active.items()],
    )
    db.executemany(
        "UPDATE project SET last_turn = max(last_turn, ?) WHERE id = ?",
        [(time, project) for project, time in counting.last_turns.items()],
    )
    db.executemany(
        "INSERT OR REPLACE INTO price VALUES (?, ?, ?)",
        [
            (model, day, rate)
            for model, (day, rate) in counting.prices.items()
            if day >= prices.get(model, (0, 0))[0]
        ],
    )


def note_answer(db: sqlite3.Connection, audience: Audience, time: int) -> None:
    """Note, once, when an audience that was answered had asked for the first time.

    For scrapers also what there was to show to them, which is where the past ends.
    """
    note = "INSERT OR IGNORE INTO meta"
    db.execute(f"{note} VALUES (?, ?)", (_ANSWERED[audience], time))
    if audience is Audience.SCRAPERS:
        for table in ("session", "rate"):
            db.execute(f"{note} SELECT 'scraped_{table}', coalesce(max(id), 0) FROM {table}")


def stored_answers(db: sqlite3.Connection) -> dict[Audience, int]:
    """Return what was noted: when those who were answered had asked for the first time."""
    noted = {audience: get_meta(db, key) for audience, key in _ANSWERED.items()}
    return {audience: time for audience, time in noted.items() if time}


def _upsert(table: str, keys: str, sums: str) -> str:
    columns = sums.split()
    marks = ", ".join("?" * (len(keys.split()) + len(columns)))
    moves = ", ".join(f"{column} = {column} + excluded.{column}" for column in columns)
    return f"INSERT INTO {table} VALUES ({marks}) ON CONFLICT DO UPDATE SET {moves}"


_UPSERTS: Final = {
    "usage_total": _upsert(
        "usage_total", "project model rate", "turns input cached output thoughts tool"
    ),
    "tool_total": _upsert("tool_total", "project model tool", "calls errors cancellations"),
    "prompt_total": _upsert("prompt_total", "model bucket", "turns"),
    "unpriced_total": _upsert("unpriced_total", "project model", "tokens"),
    "spend_total": _upsert("spend_total", "slot project rate", "input cached output thoughts tool"),
}
