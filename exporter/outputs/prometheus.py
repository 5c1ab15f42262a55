"""Exposition: the catalogue rendered for a scrape, as Prometheus text or OpenMetrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import zip_longest
from typing import Final

from ..ledger.stats import Stats
from ..ledger.store import Ledger
from .catalog import CATALOG, rows
from .metric import Buckets, Metric, Type, View

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_TEXTS: Final = ("text/plain", "text/*", "*/*", "*")
_HIDDEN: Final = "process_start_time_seconds"
"""Not exposed: collectors take it for the start of all counters, and ours outlive the process."""


def negotiate(accept: str) -> str:
    """Return the content type to answer with: OpenMetrics 1.0.0 if it is asked for, else text.

    The header is read as the scrapers write it; anything odd gets text.
    """
    best, chosen = 0.0, TEXT
    for offer in accept.lower().split(","):
        media, *parameters = (part.strip() for part in offer.split(";"))
        values = dict(part.partition("=")[::2] for part in parameters)
        quality = _quality(values.get("q", "1"))
        if media == "application/openmetrics-text" and values.get("version", "1.0.0") == "1.0.0":
            content_type = OPENMETRICS
        elif media in _TEXTS:
            content_type = TEXT
        else:
            continue
        if quality > best:
            best, chosen = quality, content_type
    return chosen


class Exposition:
    """Renders the whole catalogue from one snapshot of the ledger; safe to call from any thread."""

    def __init__(
        self, ledger: Ledger, stats: Stats, clock: Callable[[], int], *, process: bool = True
    ) -> None:
        """`clock` returns milliseconds since the epoch.

        Without `process` the metrics of the process itself are left out: they say nothing of one
        that ends at once, and would collide in the file of another exporter.
        """
        self._process = process
        self._ledger = ledger
        self._stats = stats
        self._clock = clock

    def render(self, content_type: str = TEXT) -> bytes:
        """Return the exposition in the format of one of the two content types."""
        view = View(self._ledger.snapshot(), self._stats, self._ledger, self._clock() / 1000)
        openmetrics = content_type == OPENMETRICS
        lines: list[str] = []
        for metric in CATALOG:
            lines += _family(metric, view, openmetrics)
        if self._process:
            lines += _process(openmetrics)
        if openmetrics:
            lines.append("# EOF")
        return "\n".join([*lines, ""]).encode()


def _quality(text: str) -> float:
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    return quality if 0 <= quality <= 1 else 0.0


def _family(metric: Metric, view: View, openmetrics: bool) -> Iterator[str]:
    yield from _head(metric.name, metric.type, metric.help, openmetrics)
    name = metric.name + ("_total" if metric.type is Type.COUNTER else "")
    for values, value in rows(metric, view):
        labels = _labels(metric.labels, values)
        if isinstance(value, Buckets):
            yield from _histogram(name, labels, value)
        else:
            yield f"{name}{{{labels}}} {_number(value)}" if labels else f"{name} {_number(value)}"


def _head(name: str, kind: str, text: str, openmetrics: bool) -> Iterator[str]:
    if kind == Type.COUNTER and not openmetrics:
        name += "_total"
    escaped = text.translate(_ESCAPES) if openmetrics else text
    yield f"# HELP {name} {escaped}"
    yield f"# TYPE {name} {kind}"


def _histogram(name: str, labels: str, value: Buckets) -> Iterator[str]:
    before = f"{labels}," if labels else ""
    for edge, count in zip_longest(value.edges, value.counts, fillvalue=math.inf):
        yield f'{name}_bucket{{{before}le="{_number(edge)}"}} {_number(count)}'
    suffix = f"{{{labels}}}" if labels else ""
    yield f"{name}_sum{suffix} {_number(value.sum)}"
    yield f"{name}_count{suffix} {_number(value.counts[-1])}"


def _process(openmetrics: bool) -> Iterator[str]:
    """Yield the usual process metrics without the process start time."""
    from prometheus_client import ProcessCollector

    for family in ProcessCollector(registry=None).collect():
        if family.name == _HIDDEN:
            continue
        yield from _head(family.name, family.type, family.documentation, openmetrics)
        for sample in family.samples:
            yield f"{sample.name} {_number(sample.value)}"


@lru_cache(maxsize=32_768)
def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """Return the label part of a series; most of a scrape is the same as the one before."""
    pairs = zip(names, values, strict=True)
    return ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in pairs if text)


def _number(value: float) -> str:
    if value == math.inf:
        return "+Inf"
    return str(value) if isinstance(value, int) else repr(float(value))
