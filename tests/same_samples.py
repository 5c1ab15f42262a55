"""The same samples in Prometheus and in VictoriaMetrics, with what the rules record of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import yaml

from exporter.demo.records import iso
from exporter.ledger.audience import Audience
from exporter.ledger.budgets import Budgets, Period
from exporter.outputs.prometheus import Exposition
from tests.daemon import PATIENCE
from tests.prometheus import Prometheus
from tests.support import Home, gemini, header, home
from tests.victoriametrics import RULES, VictoriaMetrics, translated

MINUTE: Final = 60_000
HOUR: Final = 60 * MINUTE
DAYS: Final = (9, 10, 11, 12, 13)
"""Of June 2025, a Monday first; on the last a month is old enough for a forecast."""

AWAKE: Final = range(9 * HOUR + 17_000, 12 * HOUR, MINUTE)
REMOVED: Final = 11 * HOUR + 30 * MINUTE
"""When the budgets are removed on the last day."""

BUDGET: Final = {Period.DAY: Decimal(2), Period.WEEK: Decimal(5), Period.MONTH: Decimal(9)}
TARGET: Final = {"job": "gemini", "instance": "laptop"}


def moment(day: int, hour: float) -> float:
    """Return a time of one of the days in seconds since the epoch."""
    return datetime(2025, 6, day, tzinfo=UTC).timestamp() + hour * 3600


class Worker:
    """Somebody who works in a scratch home, more and more carelessly on the last day."""

    def __init__(self, scratch: Home) -> None:
        self._home = scratch
        self._rng = Random(3)
        self._numbers = 0

    def scraped(self) -> Iterator[tuple[int, bytes]]:
        """Yield when the home's exporter was scraped, and what it answered."""
        scratch = self._home
        scratch.clock.now = int(moment(DAYS[0], 0) * 1000) + AWAKE[0]
        for _ in range(40):
            self._work(careless=False)
        scratch.scan()
        scratch.ledger.finish_scan([str(scratch.root)])
        budgets = Budgets(total=BUDGET, projects={"shop": BUDGET})
        limited = Exposition(scratch.ledger, scratch.stats, scratch.clock, budgets, process=False)
        unlimited = Exposition(scratch.ledger, scratch.stats, scratch.clock, process=False)
        for day in DAYS:
            last = day == DAYS[-1]
            for time in AWAKE:
                scratch.clock.now = int(moment(day, 0) * 1000) + time
                if self._rng.random() < (0.9 if last else 0.15):
                    self._work(careless=last)
                scratch.scan()
                exposition = unlimited if last and time >= REMOVED else limited
                scratch.ledger.asked(Audience.SCRAPERS)
                view = exposition.view(Audience.SCRAPERS)
                yield scratch.clock.now, exposition.render(view=view) + self._process()
                scratch.ledger.delivered(Audience.SCRAPERS, view.held)
                scratch.ledger.tend()

    def _work(self, careless: bool) -> None:
        rng = self._rng
        self._numbers += 1
        fresh = rng.choice((900, 20_000, 250_000)) * (4 if careless else 1)
        statuses = ("success", "error", "error", "cancelled")
        record = gemini(
            f"g-{self._numbers}",
            fresh,
            rng.randint(1, 3_000),
            cached=0 if careless else fresh // 2,
            thoughts=rng.randint(0, 500),
            tool=rng.choice((0, 40)),
            model=rng.choice(("gemini-2.5-flash", "gemini-2.5-pro", "gemini-of-tomorrow")),
            time=iso(self._home.clock.now - rng.randint(0, MINUTE // 2)),
            calls=[
                (f"c-{number}", rng.choice(("read_file", "write_file")), rng.choice(statuses))
                for number in range(rng.randint(0, 3))
            ],
        )
        project = rng.choice(("shop", "shop", "docs", "site"))
        name = f"session-{rng.randint(1, 4)}.jsonl"
        self._home.write(header(f"s-{project}"), record, project=project, name=name)
        if self._numbers % 20 == 0:
            self._home.write(b"{broken\n", project=project)

    def _process(self) -> bytes:
        """What Prometheus and the process would add, but always the same."""
        cpu = f"process_cpu_seconds_total {self._numbers / 50}\n"
        return f"up 1\nprocess_resident_memory_bytes {5e7 + self._numbers}\n{cpu}".encode()


class Both(NamedTuple):
    """Two servers that hold the same samples."""

    prometheus: Prometheus
    victoria: VictoriaMetrics


@contextmanager
def same_samples(folder: Path) -> Iterator[Both]:
    """Start both, with data in a folder: five days of scrapes, and of rules evaluated after each.

    On each day a machine is awake from nine to twelve.
    """
    flags = ["-search.minStalenessInterval=5m"]
    with (
        home(folder) as scratch,
        VictoriaMetrics(folder / "victoria", {}, flags=flags) as victoria,
    ):
        for at, text in Worker(scratch).scraped():
            victoria.take_in(text, TARGET, at)
        for rule in rules(translated):
            if "record" in rule:
                record(victoria, rule)
        samples = folder / "samples.om"
        samples.write_text(openmetrics(victoria))
        data = folder / "prometheus" / "data"
        command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(samples), str(data)]
        done = subprocess.run(
            [*command, "--max-block-duration=54h"],
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        with Prometheus(folder / "prometheus", {}) as prometheus:
            yield Both(prometheus, victoria)


def rules(translate: Callable[[str], str]) -> list[dict[str, Any]]:
    """Return all rules in order, those that record first."""
    found = []
    for path in sorted(RULES.glob("*.yaml"), reverse=True):
        for group in yaml.safe_load(translate(path.read_text("utf-8")))["groups"]:
            found += group["rules"]
    return found


def record(victoria: VictoriaMetrics, rule: Mapping[str, Any]) -> None:
    """Store what a rule records a moment after each scrape."""
    for day in DAYS:
        first, last = ((moment(day, 0) * 1000 + time) / 1000 + 3 for time in (AWAKE[0], AWAKE[-1]))
        for series in victoria.query_range(rule["expr"], first, last, 60):
            name = named(rule["record"], series["metric"])
            points = [f"{name} {text} {at * 1000:.0f}\n" for at, text in series["values"]]
            victoria.take_in("".join(points).encode())


def openmetrics(victoria: VictoriaMetrics) -> str:
    """Return all samples as text that promtool reads."""
    lines = [
        f"{named(labels['__name__'], labels)} {value} {at / 1000}\n"
        for labels, samples in victoria.samples('{__name__!=""}')
        for at, value in samples
    ]
    return "".join([*lines, "# EOF\n"])


def named(name: str, labels: Mapping[str, str]) -> str:
    own = (f"{key}={json.dumps(text)}" for key, text in labels.items() if key != "__name__")
    return f"{name}{{{','.join(own)}}}"
