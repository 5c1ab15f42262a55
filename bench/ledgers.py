"""Ledgers with a history that no home of a bearable size would give, made by the ledger itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from hashlib import blake2b
from itertools import islice, product
from pathlib import Path
from random import Random

from exporter.demo import MODELS
from exporter.ledger.model import Batch, Project, Role, Status, TokenUsage, ToolCall, Turn
from exporter.ledger.pricing import PriceBook
from exporter.ledger.store import Ledger

from .homes import END

_MODELS = list(MODELS)
_TOOLS = (
    *("read_file", "run_shell_command", "replace", "grep_search", "glob", "write_file"),
    *("google_web_search", "web_fetch", "mcp_github_get_issue"),
)

_END_MS = int(END.timestamp() * 1_000)
_SESSION_TURNS = 150
_BATCH_TURNS = 20_000
_YEAR_MS = 365 * 86_400_000


def with_series(path: Path, projects: int) -> None:
    """A new ledger with one turn of each model in each project and one call of each tool in it.

    That makes 12 + 9 x 3 series for each of the pairs, and some more.
    """
    rng, batch = Random(1), Batch()
    for number, model in product(range(projects), _MODELS):
        turn = _turn(rng, number, projects, model, _END_MS)
        batch.turns.append(turn)
        batch.calls += [_call(rng, turn, tool) for tool in _TOOLS]
    _write(path, iter([batch]))


def with_turns(folder: Path, turns: int) -> Path:
    """A ledger in `folder` with so many turns of one year, 0.9 tool calls each, made unless there.

    Its name also tells its schema, so a kept one is never taken for that of another release.
    """
    sample = folder / "schema.db"
    _write(sample, iter(()))
    with closing(sqlite3.connect(sample)) as db:
        schema = db.execute("SELECT group_concat(sql) FROM sqlite_schema").fetchone()[0]
    for path in folder.glob("schema.db*"):
        path.unlink()
    name = f"ledger-{turns}-{blake2b(schema.encode(), digest_size=4).hexdigest()}"
    path = folder / f"{name}.db"
    if not path.exists():
        unfinished = folder / f"{name}.new"
        for leftover in folder.glob(f"{unfinished.name}*"):
            leftover.unlink()
        _write(unfinished, _history(turns))
        unfinished.with_name(unfinished.name + ".lock").unlink(missing_ok=True)
        unfinished.rename(path)
    return path


def _write(path: Path, batches: Iterator[Batch]) -> None:
    with closing(Ledger(path, PriceBook(), lambda: _END_MS)) as ledger:
        for batch in batches:
            ledger.record(batch)
        ledger.finish_scan([])


def _history(turns: int) -> Iterator[Batch]:
    rng = Random(1)
    numbers = iter(range(turns))
    while chunk := list(islice(numbers, _BATCH_TURNS)):
        batch = Batch()
        for number in chunk:
            session = number // _SESSION_TURNS
            time = _END_MS - _YEAR_MS + _YEAR_MS * number // turns
            turn = _turn(rng, session, 12, rng.choice(_MODELS), time)
            batch.turns.append(turn)
            calls = rng.choices((0, 1, 2, 3), (35, 50, 5, 10))[0]
            batch.calls += [_call(rng, turn, rng.choice(_TOOLS)) for _ in range(calls)]
        yield batch


def _turn(rng: Random, session: int, projects: int, model: str, time: int) -> Turn:
    usage = TokenUsage(
        input=rng.randrange(500, 60_000),
        cached=rng.randrange(200_000),
        output=rng.randrange(15, 2_000),
        thoughts=rng.randrange(1_800),
    )
    slug = f"project-{session % projects}"
    project = Project(slug, f"/home/ana/src/{slug}")
    name = f"{session:08x}-0000-4000-8000-000000000000"
    return Turn(_key(rng), name, Role.MAIN, project, model, time, usage)


def _call(rng: Random, turn: Turn, tool: str) -> ToolCall:
    status = rng.choices((Status.SUCCESS, Status.ERROR, Status.CANCELLED), (91, 8, 1))[0]
    call = rng.getrandbits(64) - (1 << 63)
    return ToolCall(turn.id, call, tool, status, turn.project, turn.model, turn.time)


def _key(rng: Random) -> bytes:
    """A message id as Gemini CLI draws them, a random UUID."""
    return (rng.getrandbits(128) & ~(0xF << 76) | 4 << 76).to_bytes(16, "big")
