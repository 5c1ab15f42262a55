"""What happened in a ledger, as a private copy that is sorted by series and time.

The ledger has no order of time: its rows lie by message id. They are read once, in one transaction
of a few seconds for a million turns, and whatever takes longer reads the copy.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ..ledger.labels import label_and_owner
from ..ledger.meta import get_meta
from ..ledger.model import Role, Status

FOREVER: Final = 1 << 62
"""A time, in milliseconds since the epoch, or an id that nothing reaches."""

_GROUPS: Final = {
    "usage": ("project", "model"),
    "prompt": ("model",),
    "call": ("project", "model", "tool"),
    "session": ("project",),
}
"""What rows are grouped by, by table of the copy: they lie in the order of these and of time."""

_TABLES: Final = """
CREATE TEMP TABLE place (id INTEGER PRIMARY KEY, project INTEGER);
INSERT INTO temp.place
    SELECT p.id, q.first FROM main.project p
    JOIN (SELECT label, min(id) AS first FROM main.project GROUP BY label) q USING (label);
CREATE TEMP TABLE usage (
    project INTEGER, model INTEGER, time INTEGER, input INTEGER, cached INTEGER, output INTEGER,
    thoughts INTEGER, tool INTEGER, rate INTEGER);
CREATE TEMP TABLE prompt (model INTEGER, time INTEGER, tokens INTEGER);
CREATE TEMP TABLE call (
    project INTEGER, model INTEGER, tool INTEGER, time INTEGER, error INTEGER, cancelled INTEGER);
CREATE TEMP TABLE session (project INTEGER, time INTEGER)
"""
"""`place` maps projects with the same label to one of them."""

_ROWS: Final = (
    """
INSERT INTO temp.usage
    SELECT p.project, t.model, t.time, input, cached, output, thoughts, tool,
        iif(rate <= :rate, rate, 0)
    FROM main.turn t JOIN temp.place p ON p.id = t.project
    WHERE role != :echo AND session <= :session AND time <= :until
    ORDER BY p.project, t.model, t.time""",
    """
INSERT INTO temp.call
    SELECT p.project, c.model, c.tool, t.time, c.status = :error, c.status = :cancelled
    FROM main.tool_call c JOIN main.turn t ON t.id = c.message JOIN temp.place p ON p.id = c.project
    WHERE t.session <= :session AND t.time <= :until
    ORDER BY p.project, c.model, c.tool, t.time""",
    """
INSERT INTO temp.session
    SELECT p.project, coalesce(f.time, s.last_turn) AS began
    FROM main.session s JOIN temp.place p ON p.id = s.project
    LEFT JOIN (SELECT session, min(time) AS time FROM main.turn WHERE role = :main GROUP BY session)
        f ON f.session = s.id
    WHERE s.main AND s.id <= :session AND began <= :until
    ORDER BY p.project, began""",
)

_PROMPTS: Final = """
INSERT INTO temp.prompt
    SELECT model, time, input + cached + tool FROM temp.usage ORDER BY model, time"""

_BORN: Final = """
SELECT family, coalesce(p.project, 0), s.model, s.tool, min(born)
FROM main.series s LEFT JOIN temp.place p ON p.id = s.project GROUP BY 1, 2, 3, 4"""

_TIMELESS: Final = """
SELECT p.project, c.model, c.tool, count(*), sum(c.status = :error), sum(c.status = :cancelled)
FROM main.tool_call c JOIN temp.place p ON p.id = c.project
WHERE NOT EXISTS (SELECT 1 FROM main.turn t WHERE t.id = c.message) GROUP BY 1, 2, 3"""

_UNPRICED: Final = """
SELECT p.project, u.model, sum(tokens)
FROM main.unpriced_total u JOIN temp.place p ON p.id = u.project GROUP BY 1, 2"""

_STILL_UNPRICED: Final = """
SELECT p.project, t.model, sum(input + cached + output + thoughts + tool)
FROM main.turn t JOIN temp.place p ON p.id = t.project
WHERE role != :echo AND (rate = 0 OR rate > :rate) GROUP BY 1, 2"""

_RATES: Final = "SELECT id, input, cached, output, output, input FROM main.rate"

_BUCKETS: Final = "SELECT model, bucket, turns FROM main.prompt_total"


class Group(NamedTuple):
    """The rows behind the series that have the same labels, apart from `kind` and `le`.

    `first` and `last` say where they lie in the copy's table; there may be none.
    """

    table: str
    ids: dict[str, int]
    labels: dict[str, str]
    first: int
    last: int

    @property
    def key(self) -> tuple[int, ...]:
        """The ids of what the labels stand for."""
        return tuple(self.ids.values())

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.last - self.first + 1


class _Scraped(NamedTuple):
    """What there was when a scraper was answered for the first time: time and highest ids."""

    until: int = FOREVER
    session: int = FOREVER
    rate: int = FOREVER


class Past:
    """Turns, calls and sessions of a ledger by group, in the order of time.

    Only what a scraper's first answer can have held is in it, so that running totals never end
    above that: nothing that was found or priced afterwards. With `whole` it is everything. Times
    are in milliseconds since the epoch, ids those of the ledger.
    """

    def __init__(self, db: sqlite3.Connection, whole: bool = False) -> None:
        """Copy what is needed from the ledger behind `db`, which stays open and in use."""
        self._db = db
        db.execute("BEGIN")
        times_and_ids = (
            get_meta(db, key) for key in ("scraped", "scraped_session", "scraped_rate")
        )
        scraped = _Scraped(*(FOREVER if value is None else value for value in times_and_ids))
        seen = _Scraped() if whole else scraped
        self.scraped = None if scraped.until == FOREVER else scraped.until
        """When a scraper was answered for the first time, None if that has not happened yet."""
        self.complete = seen == _Scraped()
        """Whether nothing of the ledger is left out."""
        self._values = {
            "echo": Role.ECHO,
            "main": Role.MAIN,
            "error": Status.ERROR,
            "cancelled": Status.CANCELLED,
            **seen._asdict(),
        }
        for statement in _TABLES.split(";"):
            db.execute(statement)
        for statement in _ROWS:
            db.execute(statement, self._values)
        self.born = {key: born for key, (born,) in self._table(_BORN, 4).items()}
        """Time of the first turn, by family of the ledger's series and ids (0: none)."""
        self.timeless = self._table(_TIMELESS, 3)
        """Calls, errors and cancellations of messages that are no turns, so that no time is known,
        by project, model and tool."""
        self.unpriced = {pair: tokens for pair, (tokens,) in self._table(_UNPRICED, 2).items()}
        """Tokens without a price when they were counted, by project and model."""
        still = self._table(_STILL_UNPRICED, 2)
        self.priced_later = {
            pair: tokens - still.get(pair, (0,))[0] for pair, tokens in self.unpriced.items()
        }
        """The part of them that has a price in `rates` now."""
        self.buckets = {key: turns for key, (turns,) in self._table(_BUCKETS, 2).items()}
        """Turns by model and bucket of the prompt size, as the ledger counted them."""
        self.rates = {rate: prices for (rate,), prices in self._table(_RATES, 1).items()}
        """Pico-USD per token of each kind by rate."""
        self._labels = {
            kind: dict(db.execute(f"SELECT id, label FROM main.{kind}"))
            for kind in ("project", "model", "tool")
        }
        latest = db.execute("SELECT max(time) FROM main.turn").fetchone()[0]
        self.latest: int = max(latest or 0, *self.born.values(), 0)
        """When the latest turn was, 0 if there is none."""
        db.execute("COMMIT")
        db.execute(_PROMPTS)

    def groups(self, table: str) -> list[Group]:
        """Return the groups of one table in the order of their labels."""
        names = _GROUPS[table]
        ids = ", ".join(names)
        query = f"SELECT {ids}, min(rowid), max(rowid) FROM temp.{table} GROUP BY {ids}"
        found = self._table(query, len(names))
        if table == "call":
            found = dict.fromkeys(self.timeless, (1, 0)) | found
        groups = []
        for key, (first, last) in found.items():
            by_name = dict(zip(names, key, strict=True))
            labels = {name: self._labels[name][value] for name, value in by_name.items()}
            if "project" in labels:
                labels["project"], labels["owner"] = label_and_owner(labels["project"])
            groups.append(Group(table, by_name, labels, first, last))
        return sorted(groups, key=lambda group: list(group.labels.values()))

    def rows(self, group: Group, columns: str, where: str = "1") -> Iterator[Any]:
        """Yield these columns of the rows of a group in the order of time."""
        query = f"SELECT {columns} FROM temp.{group.table} WHERE rowid BETWEEN ? AND ? AND {where}"
        return self._db.execute(f"{query} ORDER BY rowid", (group.first, group.last))

    def start(self, family: str, group: Group, where: str = "1") -> int | None:
        """Return when the first turn of a series was, None if no row of the group is its own.

        That is as the ledger notes it, unless an earlier turn was found later.
        """
        key = (family, *(group.ids.get(name, 0) for name in ("project", "model", "tool")))
        noted = self.born.get(key)
        if not group.rows:
            return noted
        for (first,) in self.rows(group, "time", where):
            return int(first) if noted is None else min(noted, first)
        return None

    def _table(self, query: str, width: int) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """Return what a query finds by its first `width` columns."""
        rows = self._db.execute(query, self._values)
        return {row[:width]: row[width:] for row in rows}
