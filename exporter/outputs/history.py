"""The past as OpenMetrics with timestamps: the counters as if they had been scraped all along.

Each series begins as 0, a millisecond before its first turn, and has a sample at the millisecond of
every turn that may move it. So the stored values of any two moments differ by exactly what the
ledger holds between them. `between` says which samples stand beside these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final

from ..ledger.meta import get_meta
from ..ledger.reading import open_for_reading
from ..ledger.series import START_BEFORE_MS
from .escaping import escaped, in_braces, label_part
from .metric import Metric
from .past import Past
from .running import FAMILIES, Together, read

NEAR_MS: Final = 5 * 60_000
STEP_MS: Final = 60_000
FAR_MS: Final = 4 * 60_000
PAUSE_MS: Final = 60 * 60_000

JOIN_MS: Final = 5 * 60_000
"""History ends this long before a scraper was first answered. By then the tools that were running
had ended and the scraper's first sample was stamped; what happened meanwhile is in that sample."""

_OWN_LABELS: Final = frozenset(
    {"le", "owner", *(name for metric in FAMILIES for name in metric.labels)}
)
_LABEL: Final = re.compile("[a-zA-Z_][a-zA-Z0-9_]*")
_SAMPLES: Final = 1_000
"""How many samples are handed over at a time; a histogram's point is one of them."""

Progress = Callable[[int, int], None]
"""Is told how much is done, and how much there is to do in all."""


class HistoryError(Exception):
    """The history that was asked for cannot be written; the message is one line with the remedy."""


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    """Which part of the past is written, and under which further labels.

    `labels` are those that Prometheus adds itself when it scrapes, as `job` and `instance`. `start`
    and `end` are in milliseconds since the epoch, both inclusive. With `allow_overlap` the end may
    lie after the first scrape. Raises HistoryError.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    start: int | None = None
    end: int | None = None
    allow_overlap: bool = False

    def __post_init__(self) -> None:
        for name, value in self.labels.items():
            if not _LABEL.fullmatch(name) or name.startswith("__"):
                raise HistoryError(
                    f"--label {name}: a name has letters, digits and _, and no __ or digit in front"
                )
            if name in _OWN_LABELS:
                raise HistoryError(
                    f"--label {name}: the series have a label of that name; choose another"
                )
            if not value or not value.isprintable():
                raise HistoryError(
                    f"--label {name}: the value {value!r} is not one line of text; write NAME=VALUE"
                )
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise HistoryError("--start is not before --end; exchange them")


def parse_label(text: str) -> tuple[str, str]:
    """Return name and value of a label that is written NAME=VALUE; raises HistoryError."""
    name, equals, value = text.partition("=")
    if not equals:
        raise HistoryError(f"--label {text}: write NAME=VALUE, as in job=gemini-cli")
    return name.strip(), value.strip()


def write_history(
    ledger: Path, out: BinaryIO, options: HistoryOptions, progress: Progress | None = None
) -> None:
    """Write the counters of a ledger with timestamps, as OpenMetrics.

    Memory does not grow with the ledger; a sorted copy of it lies in a temporary file meanwhile.
    Raises LedgerError if the ledger cannot be read, HistoryError if it is not complete, nothing
    lies in the range or that runs into what has been scraped, and OSError.
    """
    with closing(open_for_reading(ledger)) as db:
        if not get_meta(db, "complete") or get_meta(db, "catching_up"):
            raise HistoryError(
                f"the ledger {ledger} does not hold all transcripts yet; wait for the first scan"
                " to end, or run `gemini-cli-exporter once`"
            )
        past = Past(db, whole=options.allow_overlap)
        if not past.latest:
            raise HistoryError(f"there is no turn in the ledger {ledger} yet; nothing to write")
        samples = _Samples(out, _span(options, past))
        families = [(metric, read(metric, past)) for metric in FAMILIES]
        total, done = sum(one.rows for _, several in families for one in several), 0
        for metric, several in families:
            samples.head(metric)
            for one in several:
                heads = [
                    f"{metric.name}{suffix}{in_braces(label_part(labels | dict(options.labels)))} "
                    for suffix, labels in one.names
                ]
                samples.write(heads, one)
                done += one.rows
                if progress is not None:
                    progress(done, total)
        samples.end()


def between(before: int, after: int) -> Iterator[range]:
    """Yield where samples stand between two moments at which something happened.

    They are a minute apart in the five minutes after the one and before the other, and four minutes
    in the time between unless that is more than an hour. In a longer pause none are needed: what is
    compared with the next turn is the old value in the minutes before it.
    """
    if after - before <= 2 * NEAR_MS + STEP_MS:
        yield range(before + STEP_MS, after, STEP_MS)
        return
    left, right = before + NEAR_MS, after - NEAR_MS
    yield range(before + STEP_MS, left + 1, STEP_MS)
    if right - left <= PAUSE_MS:
        yield range(left + FAR_MS, right, FAR_MS)
    yield range(right, after, STEP_MS)


class _Samples:
    """Writes the samples that lie in a span of time, both ends included."""

    def __init__(self, out: BinaryIO, span: tuple[int, int]) -> None:
        self._out = out
        self._start, self._end = span
        self._lines: list[str] = []

    def head(self, metric: Metric) -> None:
        """Begin a family."""
        text = escaped(metric.help)
        self._lines.append(f"# HELP {metric.name} {text}\n# TYPE {metric.name} {metric.type}\n")

    def write(self, heads: Sequence[str], series: Together) -> None:
        """Write series from 0 on, or from their value at the start of the span.

        A series that is born after its end is written as 0 there, so that the first value which is
        scraped is a rise.
        """
        moment = min(max(series.born - START_BEFORE_MS, self._start), self._end)
        values: tuple[int, ...] = (0,) * len(heads)
        for time, after in series.steps():
            if time > self._end:
                break
            if time > moment:
                self._add(heads, values, series.unit, moment, time)
                moment = time
            values = after
        tail = min(moment + NEAR_MS, self._end)
        self._add(heads, values, series.unit, moment, tail + 1)

    def end(self) -> None:
        """End the whole."""
        self._lines.append("# EOF\n")
        self._flush()

    def _add(
        self, heads: Sequence[str], values: tuple[int, ...], unit: int, moment: int, after: int
    ) -> None:
        """Add the samples from one moment up to the next."""
        numbers = values if unit == 1 else [value / unit for value in values]
        parts = [f"{head}{number} " for head, number in zip(heads, numbers, strict=True)]
        parts.append("")
        self._lines.append(f"{moment // 1000}.{moment % 1000:03d}\n".join(parts))
        if after - moment > STEP_MS:
            for times in between(moment, after):
                # They are whole seconds apart.
                fraction = f".{times.start % 1000:03d}\n"
                self._lines += [f"{time // 1000}{fraction}".join(parts) for time in times]
        if len(self._lines) >= _SAMPLES:
            self._flush()

    def _flush(self) -> None:
        self._out.write("".join(self._lines).encode())
        self._lines.clear()


def _span(options: HistoryOptions, past: Past) -> tuple[int, int]:
    """Return the first and the last moment of which something is written."""
    limit = past.latest
    if past.scraped is not None and not options.allow_overlap:
        limit = past.scraped - JOIN_MS
        if options.end is not None and options.end > limit:
            raise HistoryError(
                f"--end is after {_moment(limit)}, and scrapes of this ledger began then; leave it"
                " out, or add --allow-overlap if they went to another Prometheus"
            )
    start = 0 if options.start is None else options.start
    end = limit if options.end is None else min(options.end, limit)
    if start > end:
        raise HistoryError(
            f"there is nothing to write after {_moment(end)}; choose an earlier --start"
        )
    return start, end


def _moment(time: int) -> str:
    return datetime.fromtimestamp(time / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
