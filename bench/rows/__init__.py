"""The rows of the table: each step measures something and gives a few of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..subject import Subject
from ..table import Row
from . import append, cold, idle, memory, million, restart, scrape, visible

Step = Callable[[Subject], Iterator[Row]]

STEPS: dict[str, Step] = {
    "jsonl": cold.jsonl,
    "json": cold.json,
    "restart": restart.rows,
    "append": append.rows,
    "visible": visible.rows,
    "idle": idle.rows,
    "memory": memory.rows,
    "scrape": scrape.rows,
    "million": million.rows,
}
"""By the name that `--only` takes. A step raises CommandError if it cannot be trusted."""
