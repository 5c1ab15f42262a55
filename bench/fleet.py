"""Measure what one laptop pushes and what that costs it, work out a fleet, and print the tables."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import cycle
from operator import add
from pathlib import Path
from typing import Final, NamedTuple

from exporter.demo import MODELS, Calls, LiveHome, Plan, Truth, Usage, write_home
from tests.otlp_points import Histogram, Point
from tests.otlp_sink import GrpcSink, Inbox, Sink

from . import homes
from .process import CommandError
from .server import sample_lines
from .subject import Subject
from .writer import Writer

_FLEETS: Final = (10, 1_000, 100_000)
_INTERVAL: Final = 60
"""Seconds between two pushes, as it is by default."""
_PACE: Final = 0.25
"""The same while it is measured."""
_MODELS: Final = 3
_GROUPS: Final = {
    "turns, tokens, cost, savings": ("turns", "tokens", "cost.usd", "cache_savings.usd"),
    "tools": ("tool_calls", "tool_errors", "tool_cancellations"),
    "prompt sizes": ("turn_prompt_tokens",),
    "prices, turns without one": ("price_usd_per_million_tokens", "unpriced_turns"),
    "sessions, last turn": ("sessions", "active_sessions", "last_turn_timestamp"),
    "spending by the calendar": ("spend.usd", "spend_last_hour.usd"),
}
"""Metrics of usage, by what they have labels of; all others are there once."""
_ONCE: Final = "the exporter's own, the calendar"
_GROUP_OF: Final = {
    f"gemini_cli.{name}": group for group, names in _GROUPS.items() for name in names
}


class Way(NamedTuple):
    """How requests are sent: the values of the standard variables."""

    protocol: str
    temporality: str
    compression: str

    def __str__(self) -> str:
        return ", ".join(part for part in (*self[:2], "gzip" * (self[2] == "gzip")) if part)


_FIRST: Final = Way("http/protobuf", "cumulative", "none")
_WAYS: Final = (
    _FIRST,
    Way("http/protobuf", "cumulative", "gzip"),
    Way("http/protobuf", "delta", "none"),
    Way("http/protobuf", "delta", "gzip"),
    Way("grpc", "cumulative", "none"),
    Way("grpc", "delta", "none"),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a number of pushes cost: CPU seconds and body bytes of each, memory in bytes at the end.

    `points` are those of the last one, `scraped` the series of /metrics.
    """

    cpu: float
    size: float
    resident: int
    points: Sequence[Point]
    scraped: int


class Laptop(NamedTuple):
    """A home that somebody works in, and what it holds."""

    what: str
    home: Path
    truth: Truth
    env: Mapping[str, str] = {}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; return 1 if a count is wrong or a step fails."""
    arguments = _arguments(argv)
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        place = Path(scratch)
        env = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        env |= {"HOME": scratch, "XDG_STATE_HOME": scratch, "TZ": "UTC"}
        command = shlex.split(arguments.command)
        subject = Subject(command, place, place, env, runs=1, scale=1)
        try:
            _measure(subject, _laptops(place), arguments.pushes)
        except CommandError as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
    print(
        f"\n{os.cpu_count()} cores, Python {platform.python_version()}, {arguments.pushes} pushes"
    )
    return 0


def _measure(subject: Subject, laptops: Sequence[Laptop], pushes: int) -> None:
    found = {laptop.what: _pushed(subject, laptop, _FIRST, 3) for laptop in laptops}
    _print_series(found)
    typical = laptops[0]
    base = _pushed(subject, typical, None, pushes)
    costs = {way: _pushed(subject, typical, way, pushes) for way in _WAYS}
    _print_table(
        ("a push of the typical laptop", "bytes", "CPU", "memory"),
        [
            (
                str(way),
                f"{cost.size:,.0f}",
                f"{1_000 * (cost.cpu - base.cpu):.1f} ms",
                f"+{(cost.resident - base.resident) / 1e6:.0f} MB",
            )
            for way, cost in costs.items()
        ],
    )
    print(f"\nwithout pushing: {base.resident / 1e6:.0f} MB, {1_000 * base.cpu:.1f} ms a reply")
    _print_fleets(found, costs[_WAYS[1]].size / costs[_FIRST].size)


def _laptops(folder: Path) -> list[Laptop]:
    now = datetime.now(UTC)
    plan = Plan(now, projects=3, sessions=60, subagents=12, turns=1_500, turn_bytes=4_000)
    home = folder / "typical"
    truth = _with_fewer_models(home, write_home(home, plan))
    demo = LiveHome(folder / "demo", lambda: int(1_000 * now.timestamp()))
    without = {"GEMINI_CLI_EXPORTER_LABELS_PROJECT": "none"}
    return [
        Laptop("typical", home, truth),
        Laptop("typical, no project label", home, truth, without),
        Laptop("the demo's", demo.root.parent, demo.write_past()),
    ]


def _with_fewer_models(home: Path, truth: Truth) -> Truth:
    """Let a home be one of three models: each of the others becomes one of these."""
    names = dict(zip(MODELS, cycle(list(MODELS)[:_MODELS])))
    for path in homes.transcripts(home):
        content = path.read_bytes()
        for old, new in names.items():
            content = content.replace(
                b'"model":"%b"' % old.encode(), b'"model":"%b"' % new.encode()
            )
        path.write_bytes(content)
    usage: dict[tuple[str, str], Usage] = {}
    calls: dict[tuple[str, str, str], Calls] = {}
    for (project, model), used in truth.usage.items():
        pair = (project, names[model])
        usage[pair] = Usage(*map(add, usage.get(pair, Usage()), used))
    for (project, model, tool), called in truth.calls.items():
        key = (project, names[model], tool)
        calls[key] = Calls(*map(add, calls.get(key, Calls()), called))
    return replace(truth, usage=usage, calls=calls)


def _pushed(subject: Subject, laptop: Laptop, way: Way | None, pushes: int) -> Cost:
    """Let somebody work and push; a reply comes between two pushes, one in each project before.

    Without a way the replies come at the same pace and nothing is pushed.
    """
    writer = Writer(laptop.home, laptop.truth)
    transcripts = {path.parts[-3]: path for path in homes.transcripts(laptop.home)}
    with GrpcSink() if way and way.protocol == "grpc" else Sink() as inbox:
        env = {**subject.env, **laptop.env, **(_variables(way, inbox) if way else {})}
        with replace(subject, env=env).serve(laptop.home, subject.ledger()) as server:
            for transcript in transcripts.values():
                writer.append(transcript)
            if way is not None:
                inbox.wait_for_requests(len(inbox.requests) + 4)
            began, cpu = len(inbox.requests), server.cpu
            for _ in range(pushes):
                writer.append(transcript)
                if way is not None:
                    inbox.wait_for_requests(len(inbox.requests) + 1)
                else:
                    time.sleep(_PACE)
            cpu = server.cpu - cpu
            requests = inbox.requests[began:]
            resident, scraped = server.resident, len(sample_lines(server.scrape()))
            if not laptop.env:
                subject.check(server, laptop.truth)
    if not all(request.points for request in requests):
        raise CommandError("a request is empty or cannot be read")
    sizes = [request.size for request in requests] or [0]
    points = requests[-1].points if requests else ()
    made = len(requests) or pushes
    return Cost(cpu / made, sum(sizes) / len(sizes), resident, points, scraped)


def _variables(way: Way, inbox: Inbox) -> dict[str, str]:
    return {
        "GEMINI_CLI_EXPORTER_OTLP": "yes",
        "OTEL_EXPORTER_OTLP_ENDPOINT": inbox.url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": way.protocol,
        "OTEL_EXPORTER_OTLP_COMPRESSION": way.compression,
        "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": way.temporality,
        "OTEL_METRIC_EXPORT_INTERVAL": str(round(1_000 * _PACE)),
        "OTEL_RESOURCE_ATTRIBUTES": "team=platform,owner=ana,host.name=laptop7",
    }


def _series(point: Point) -> int:
    """How many series Prometheus makes of a point: buckets, sum and count of a histogram."""
    return len(point.value.buckets) + 2 if isinstance(point.value, Histogram) else 1


def _by_group(points: Iterable[Point]) -> Counter[str]:
    found: Counter[str] = Counter()
    for point in points:
        found[_GROUP_OF.get(point.name, _ONCE)] += _series(point)
    return found


def _shape(points: Iterable[Point]) -> str:
    """How many projects, models, pairs of both, and triples with a tool."""
    counts = Counter(point.name for point in points)
    models, turns = counts["gemini_cli.turn_prompt_tokens"], counts["gemini_cli.turns"]
    return f"{counts['gemini_cli.sessions']}, {models}, {turns}, {counts['gemini_cli.tool_calls']}"


def _print_series(found: Mapping[str, Cost]) -> None:
    groups = {what: _by_group(cost.points) for what, cost in found.items()}
    rows = [("projects, models, pairs, triples", *(_shape(c.points) for c in found.values()))]
    for group in (*_GROUPS, _ONCE):
        rows.append((group, *(f"{by_group[group]:,}" for by_group in groups.values())))
    rows.append(("**series**", *(f"**{by_group.total():,}**" for by_group in groups.values())))
    rows.append(("points of a request", *(f"{len(cost.points):,}" for cost in found.values())))
    rows.append(("bytes of a request", *(f"{cost.size:,.0f}" for cost in found.values())))
    rows.append(("series on /metrics", *(f"{cost.scraped:,}" for cost in found.values())))
    _print_table(("series", *groups), rows)


def _print_fleets(found: Mapping[str, Cost], packed: float) -> None:
    """Multiply; `packed` is what gzip leaves of a request."""
    rows = []
    for what, cost in found.items():
        series = _by_group(cost.points).total()
        for laptops in _FLEETS:
            rate = laptops / _INTERVAL
            rows.append(
                (
                    f"{laptops:,} x {what}",
                    f"{laptops * series:,}",
                    f"{rate:,.1f}",
                    f"{rate * series:,.0f}",
                    f"{rate * cost.size / 1e3:,.1f} kB",
                    f"{rate * cost.size * packed / 1e3:,.1f} kB",
                )
            )
    titles = ("fleet", "series", "requests/s", "samples/s", "bytes/s", "bytes/s, gzip")
    _print_table(titles, rows)


def _print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    print()
    for cells in (titles, ["---", *["---:"] * (len(titles) - 1)], *rows):
        print(f"| {' | '.join(cells)} |")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    beside = Path(sys.executable).with_name("gemini-cli-exporter")
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__)
    parser.add_argument("--pushes", type=int, default=60, help="pushes of each kind (default 60)")
    parser.add_argument("--command", default=str(beside), help="the exporter to measure")
    arguments = parser.parse_args(argv)
    if arguments.pushes < 1:
        parser.error("--pushes must be at least 1")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
