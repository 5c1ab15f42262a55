"""The table that a benchmark ends in, in Markdown, and what makes a row of it good or bad."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_TITLES = ("what", "ours", "rival", "value", "must be", "goal", "verdict")
_TEXTS = (0, len(_TITLES) - 1)
"""Columns of words; the others hold numbers, which stand at the right."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    `value` must be at most `limit` and should be at most `goal`, all three in `unit`; without a
    unit they are ratios or counts. `ours` and `rival` are the figures behind the value. `note` is
    the verdict of a row that is not judged.
    """

    what: str
    ours: str = ""
    rival: str = ""
    value: float | None = None
    limit: float | None = None
    goal: float | None = None
    unit: str = ""
    note: str = ""

    @property
    def missed(self) -> bool:
        """Whether a required value is not reached."""
        return self.value is not None and self.limit is not None and self.value > self.limit

    @property
    def verdict(self) -> str:
        """MISSED, ok where only the goal is not reached, goal, or the note."""
        if self.value is None or self.goal is None:
            return self.note
        return "MISSED" if self.missed else "goal" if self.value <= self.goal else "ok"

    def cells(self, judged: bool) -> tuple[str, ...]:
        """The texts of the columns; without a verdict if nothing is judged."""
        numbers = (self._number(number) for number in (self.value, self.limit, self.goal))
        return self.what, self.ours, self.rival, *numbers, self.verdict if judged else self.note

    def _number(self, number: float | None) -> str:
        return "" if number is None else f"{number:.3g} {self.unit}".rstrip()


def render(rows: Sequence[Row], judged: bool) -> str:
    """The table with one line for each row."""
    lines = [_TITLES, *(row.cells(judged) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = [
        "-" * width if column in _TEXTS else "-" * (width - 1) + ":"
        for column, width in enumerate(widths)
    ]
    aligned = [
        [
            cell.ljust(width) if column in _TEXTS else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        for cells in lines
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (aligned[0], rule, *aligned[1:]))


def seconds(value: float) -> str:
    """Seconds as the table shows them."""
    return f"{value:.3f} s"


def megabytes(value: float) -> str:
    """Bytes as the table shows them; a megabyte has 1,000,000."""
    return f"{value / 1e6:.0f} MB"
