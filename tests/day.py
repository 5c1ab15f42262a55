"""A scripted day: transcripts as they are written, and what each counter must have gained by them.

The sums are the script's own, from the records that it wrote and the published prices below.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from exporter.demo.records import iso
from tests.program import PATIENCE, Program
from tests.prometheus import Prometheus
from tests.support import dumps, gemini, header, user

HOUR: Final = 3_600_000
EDGES: Final = (1e3, 4e3, 16e3, 32e3, 64e3, 128e3, 200e3, 500e3, 1e6, float("inf"))
PICO: Final = 10**12
RATES: Final = {
    "gemini-2.5-flash": (300_000, 30_000, 2_500_000),
    "gemini-2.5-pro": (1_250_000, 125_000, 10_000_000),
    "gemini-2.5-flash-lite": (100_000, 10_000, 400_000),
}
"""Pico-USD per token by model: input, cached, output. Other models have no price."""

Key = tuple[str, frozenset[tuple[str, str]]]
"""Name and labels of one series of a counter, without those of the target."""

_SCRAPER: Final = "X-Prometheus-Scrape-Timeout-Seconds"


def key_of(name: str, labels: dict[str, str]) -> Key:
    """Return the key of a sample; bucket edges are spelled in one way."""
    own = {label: text for label, text in labels.items() if label not in ("job", "instance")}
    if "le" in own:
        own["le"] = str(float(own["le"]))
    return name.removesuffix("_total"), frozenset(own.items())


def is_counter(name: str) -> bool:
    """Tell whether a sample belongs to one of the counters of usage."""
    usage = name.startswith("gemini_cli_") and not name.startswith("gemini_cli_exporter_")
    return usage and name.endswith(("_total", "_bucket", "_count", "_sum"))


class Scribe:
    """Writes transcripts below roots, and knows the value of each series that follows.

    Money is in pico-USD. `base` is what a series began with: not an increase to anybody.
    """

    def __init__(self) -> None:
        self.totals: Counter[Key] = Counter()
        self.base: Counter[Key] = Counter()
        self.lived: Counter[str] = Counter()
        """What happened while scrapers looked on, by metric."""
        self._by_path = False
        self._numbers = 0
        self._sessions: set[str] = set()

    def write(
        self,
        root: Path,
        project: str,
        model: str,
        *,
        turns: int = 1,
        calls: Sequence[tuple[str, str]] = (),
        ago: int = 0,
        live: bool = True,
    ) -> Path:
        """Write turns of the project's session in one piece, each with tool calls (name, status).

        They happened `ago` milliseconds ago; what is not `live` is history where it makes a series.
        """
        path = root / "tmp" / project / "chats" / "session-a.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent.parent / ".project_root").write_text(_path(project))
        at = iso(int(time.time() * 1000) - ago)
        session = f"{project}-session"
        lines: list[dict[str, Any]] = [header(session), user(f"u-{self._numbers}", at)]
        gained: Counter[Key] = Counter()
        if session not in self._sessions:
            self._sessions.add(session)
            self._add(gained, "sessions", 1, project=project)
        for _ in range(turns):
            self._numbers += 1
            number = self._numbers
            counts = (700 * number, 300 * number, 11 * number, 5 * (number % 3), number % 2)
            fresh, cached, output, thoughts, tool = counts
            asked = [(f"c-{index}", *call) for index, call in enumerate(calls)]
            record = gemini(
                f"g-{number}",
                fresh + cached,
                output,
                cached=cached,
                thoughts=thoughts,
                tool=tool,
                model=model,
                time=at,
                calls=asked or None,
            )
            lines.append(record)
            self._turn(gained, project, model, counts)
            for tool_name, status in calls:
                labels = {"model": model, "project": project, "tool": tool_name}
                self._add(gained, "tool_calls", 1, **labels)
                self._add(gained, "tool_errors", status == "error", **labels)
                self._add(gained, "tool_cancellations", status == "cancelled", **labels)
        for key, amount in gained.items():
            if not live and key not in self.totals:
                self.base[key] = amount
            if live:
                self.lived[key[0]] += amount
            self.totals[key] += amount
        with path.open("ab") as file:
            file.write(b"".join(dumps(line) + b"\n" for line in lines))
        return path

    def begin(self) -> None:
        """Take what was written so far for what was there before anybody looked."""
        self.base = self.totals.copy()
        self.lived.clear()

    def relabel(self) -> None:
        """Let projects be shown by their paths from now on: as other series, with a past."""
        self._by_path = True
        for (name, labels), value in list(self.totals.items()):
            renamed = dict(labels)
            if "project" in renamed:
                renamed["project"] = self._label(renamed["project"])
                key = key_of(name, renamed)
                self.totals[key] = self.base[key] = value

    def shown(self) -> dict[Key, float]:
        """Return the value of each series that is exposed now."""
        return {key: in_units(key, value) for key, value in self.totals.items() if self._now(key)}

    def ends(self) -> dict[Key, float]:
        """Return the last value of each series that was ever exposed."""
        return {key: in_units(key, total) for key, total in self.totals.items()}

    def gained(self) -> dict[Key, float]:
        """Return what each series gained since its first scrape."""
        return {key: in_units(key, total - self.base[key]) for key, total in self.totals.items()}

    def _now(self, key: Key) -> bool:
        project = dict(key[1]).get("project")
        return project is None or project.startswith("/") == self._by_path

    def _label(self, slug: str) -> str:
        return _path(slug) if self._by_path else slug

    def _add(self, gained: Counter[Key], metric: str, amount: int, **labels: str) -> None:
        if "project" in labels:
            labels["project"] = self._label(labels["project"])
        gained[key_of(f"gemini_cli_{metric}", labels)] += amount

    def _turn(
        self, gained: Counter[Key], project: str, model: str, counts: tuple[int, int, int, int, int]
    ) -> None:
        pair = {"model": model, "project": project}
        kinds = dict(zip(("input", "cached", "output", "thoughts", "tool"), counts, strict=True))
        self._add(gained, "turns", 1, **pair)
        for kind, tokens in kinds.items():
            self._add(gained, "tokens", tokens, kind=kind, **pair)
        rate = RATES.get(model)
        if rate is None:
            self._add(gained, "unpriced_tokens", sum(counts), **pair)
        else:
            for kind, price in zip(kinds, (*rate, rate[2], rate[0]), strict=True):
                self._add(gained, "cost_usd", price * kinds[kind], kind=kind, **pair)
            saved = kinds["cached"] * (rate[0] - rate[1])
            self._add(gained, "cache_savings_usd", saved, **pair)
        prompt = kinds["input"] + kinds["cached"] + kinds["tool"]
        for edge in EDGES:
            bucket = "turn_prompt_tokens_bucket"
            self._add(gained, bucket, prompt <= edge, model=model, le=str(edge))
        self._add(gained, "turn_prompt_tokens_sum", prompt, model=model)
        self._add(gained, "turn_prompt_tokens_count", 1, model=model)


def in_units(key: Key, value: int) -> float:
    """Return a sum as it is exposed: money in USD."""
    return value / PICO if "_usd" in key[0] else value


def _path(slug: str) -> str:
    return f"/home/ana/{slug}"


class Served(Program):
    """The program on one port of both loopback addresses, with other flags in each life."""

    def __init__(self, folder: Path, hold: str) -> None:
        folder.mkdir()
        super().__init__(folder, [])
        self._port = _free_port()
        self.addresses = [f"127.0.0.1:{self._port}", f"[::1]:{self._port}"]
        self._fixed = [sys.executable, "-m", "exporter", "serve"]
        self._fixed += ["--ledger.path", str(folder / "ledger.db"), "--web.zero-first-hold", hold]
        for address in self.addresses:
            self._fixed += ["--web.listen-address", address]

    def live(self, roots: Sequence[Path], *flags: str) -> None:
        """Begin a life with these roots and flags; returns when it shows something."""
        self._command = [*self._fixed, *flags]
        for root in roots:
            self._command += ["--transcripts.root", str(root)]
        self.start()
        self.metrics()

    def values(self, *, scraper: bool = False) -> dict[Key, float]:
        """Return what a person is shown now or, as one who has no use for it, a scraper."""
        return {
            key_of(sample.name, sample.labels): sample.value
            for sample in self.samples(scraper=scraper)
            if is_counter(sample.name)
        }

    def samples(self, *, scraper: bool = False) -> list[Sample]:
        """Return everything that is shown now."""
        request = urllib.request.Request(f"http://{self.addresses[0]}/metrics")
        if scraper:
            request.add_header(_SCRAPER, "1")
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            text = answer.read().decode()
        return [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    @property
    def held(self) -> float:
        """How many series it holds."""
        return self.metrics().value("gemini_cli_exporter_series_held")

    def shows(self, expected: dict[Key, float]) -> None:
        """Return once a person is shown exactly this; raises AssertionError if it never is."""
        end = time.monotonic() + PATIENCE
        while (difference := differing(self.values(), expected)) and time.monotonic() < end:
            time.sleep(0.02)
        assert difference == {}

    def settles(self) -> None:
        """Return once nothing is held any more."""
        end = time.monotonic() + PATIENCE
        while held := self.held:
            assert time.monotonic() < end, f"{held} series are held for ever"
            time.sleep(0.05)

    def dropped_scrape(self) -> None:
        """Ask as a scraper does, and hang up before the answer can be taken."""
        head = f"GET /metrics HTTP/1.1\r\nHost: localhost\r\n{_SCRAPER}: 1\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self._port)) as sock:
            # Closing resets the connection, whatever is on its way.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.sendall(head.encode())


def differing(found: dict[Key, float], expected: dict[Key, float]) -> dict[Key, tuple[Any, Any]]:
    """Return what is not the same in both: tokens exactly, USD to a billionth."""
    return {
        key: (found.get(key), expected.get(key))
        for key in found.keys() | expected.keys()
        if key not in found
        or key not in expected
        or abs(found[key] - expected[key]) > (1e-9 if "_usd" in key[0] else 0)
    }


def stored(server: Prometheus, job: str, address: str) -> dict[Key, list[float]]:
    """Return all samples of the usage counters that a server holds of one target, in order."""
    matcher = f'__name__=~"gemini_cli_.*",job="{job}",instance="{address}"'
    samples: dict[Key, list[float]] = defaultdict(list)
    for series in server.query(f"{{{matcher}}}[1d]"):
        name = series["metric"].pop("__name__")
        if is_counter(name):
            samples[key_of(name, series["metric"])] += [float(text) for _, text in series["values"]]
    return dict(samples)


def _free_port() -> int:
    """Return a port that is free on both loopback addresses."""
    with socket.socket() as four, socket.socket(socket.AF_INET6) as six:
        four.bind(("127.0.0.1", 0))
        port: int = four.getsockname()[1]
        six.bind(("::1", port))
        return port
