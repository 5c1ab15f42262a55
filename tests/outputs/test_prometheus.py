"""The exposition: exact, well-formed in both formats, and the same as the committed files."""

from __future__ import annotations

import math
import platform
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.ledger.audience import Audience
from exporter.ledger.labels import LabelRules, ProjectLabel
from exporter.ledger.model import KINDS, TokenUsage
from exporter.ledger.pricing import PriceBook, PriceOverride, PriceTier
from exporter.ledger.stats import Stats
from exporter.ledger.store import Ledger
from exporter.ledger.totals import PairTotal, Snapshot, Spending, ToolTotal
from exporter.outputs import own, prometheus
from exporter.outputs.prometheus import OPENMETRICS, TEXT, Exposition, negotiate
from exporter.transcripts.collector import Collector
from exporter.transcripts.files import ERROR_REASONS
from exporter.transcripts.shapes import Reason
from tests.program import Metrics
from tests.real import RealSet, names
from tests.support import Clock, Home, gemini, header, home, millis

Labels = tuple[tuple[str, str], ...]
Series = dict[tuple[str, Labels], float]

TURNS = "gemini_cli_turns_total"
PROMPTS = "gemini_cli_turn_prompt_tokens"

FORMATS = pytest.mark.parametrize("content_type", [TEXT, OPENMETRICS], ids=["text", "openmetrics"])


def families(body: bytes) -> list[Metric]:
    """Parse an exposition with the parser of its format."""
    text = body.decode()
    return list((parse_openmetrics if text.endswith("# EOF\n") else parse_text)(text))


def series(body: bytes) -> Series:
    """Return each series of an exposition with its value; fail if one stands in it twice."""
    found: Series = {}
    for family in families(body):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def by_labels(found: Series, name: str) -> dict[tuple[str, ...], float]:
    """Return the values of one sample name by its label values, in the order of their names."""
    return {
        tuple(value for _, value in labels): number
        for (sample, labels), number in found.items()
        if sample == name
    }


# Committed files

SETS = (
    "0.61.0-interactive",  # a cancelled tool call
    "0.61.0-models",  # a model that is free and one without a price
    "0.61.0-subagent_resume",  # subagents, two models, failed tool calls
    "0.61.0-tools",  # many tools, and tokens of the kind tool
    "0.8.2+0.22.4+0.28.2+0.36.0+0.45.2+0.61.0-two-projects-years",  # projects of all kinds
)
NO_PRICE = PriceOverride(price_as="none")
OWN_PRICES = {
    "gemini-2.5-flash": PriceOverride(PriceTier(Decimal("0.3"), Decimal("2.5"), Decimal("0.03"))),
    "gemini-2.5-pro": PriceOverride(
        PriceTier(Decimal("1.25"), Decimal(10), Decimal("0.125")),
        above_tokens=5_000,
        above=PriceTier(Decimal("2.5"), Decimal(15), Decimal("0.25")),
    ),
    "gemini-3.1-pro-preview-customtools": NO_PRICE,
    "gemini-3.5-flash": PriceOverride(PriceTier(Decimal("1.5"), Decimal(9), Decimal("0.15"))),
    "gemini-3.8-flash": PriceOverride(PriceTier(Decimal(0), Decimal(0))),
}
"""Prices that no release of the price library changes."""


@pytest.fixture
def invariable(monkeypatch: pytest.MonkeyPatch, real_sets: dict[str, RealSet]) -> None:
    """Take away what depends on the machine and on versions."""
    monkeypatch.setattr(own, "__version__", "1.2.3")
    monkeypatch.setattr(own, "library_version", lambda: "4.5.6")
    monkeypatch.setattr(platform, "python_version", lambda: "3.11.2")
    monkeypatch.setattr(Ledger, "size", lambda _: 143_360)
    monkeypatch.setattr(prometheus, "_process", lambda _: iter(()))
    monkeypatch.setenv("HOME", str(next(iter(real_sets.values())).folder.parent))


@FORMATS
@pytest.mark.usefixtures("invariable")
def test_the_whole_exposition_is_the_committed_file(
    content_type: str,
    real_sets: dict[str, RealSet],
    tmp_path: Path,
    golden: Callable[[str, bytes], None],
) -> None:
    clock = Clock("2026-11-30T20:00:00Z")
    stats = Stats(clock.now / 1000, Reason, ERROR_REASONS)
    with closing(Ledger(tmp_path / "ledger.db", PriceBook(OWN_PRICES), clock)) as ledger:
        clock.now = millis("2026-11-30T20:17:32Z")
        roots = [str(real_sets[name].gemini) for name in SETS]
        with closing(Collector(roots, ledger, stats, clock)) as collector:
            collector.scan()
        # Files come in any order, which shows in the last digits of a sum of floats.
        stats.lag_sum = round(stats.lag_sum, 3)
        body = Exposition(ledger, stats, clock).render(content_type)
    golden("metrics.txt" if content_type == TEXT else "metrics.openmetrics.txt", body)


# Every real set


@dataclass(frozen=True)
class Shown:
    """What is shown of one real set, in both formats."""

    real: RealSet
    text: bytes
    openmetrics: bytes


@pytest.fixture(scope="module", params=names())
def shown(
    request: pytest.FixtureRequest,
    real_sets: dict[str, RealSet],
    tmp_path_factory: pytest.TempPathFactory,
) -> Shown:
    real = real_sets[request.param]
    with home(tmp_path_factory.mktemp("shown"), real.gemini) as scratch:
        scratch.scan()
        exposition = Exposition(scratch.ledger, scratch.stats, scratch.clock)
        return Shown(real, exposition.render(TEXT), exposition.render(OPENMETRICS))


def test_the_exposition_parsed_again_is_the_truth(shown: Shown) -> None:
    assert Metrics(shown.text.decode()).counted == shown.real.expected()


def test_both_formats_hold_the_same_series(shown: Shown) -> None:
    def lasting(body: bytes) -> Series:
        return {key: n for key, n in series(body).items() if not key[0].startswith("process_")}

    assert lasting(shown.text) == lasting(shown.openmetrics)


def test_money_and_prompt_sizes_follow_from_the_tokens_shown(shown: Shown) -> None:
    """No real prompt reaches a higher tier, so each cost is tokens times the price shown."""
    found = series(shown.text)
    tokens = by_labels(found, "gemini_cli_tokens_total")
    price = by_labels(found, "gemini_cli_price_usd_per_million_tokens")
    cost = by_labels(found, "gemini_cli_cost_usd_total")
    assert cost.keys() == tokens.keys()
    for (kind, model, project), value in cost.items():
        expected = tokens[kind, model, project] * price[kind, model] / 1_000_000
        assert value == pytest.approx(expected, rel=1e-9)
    savings = by_labels(found, "gemini_cli_cache_savings_usd_total")
    prompts: dict[str, float] = defaultdict(float)
    turns: dict[str, float] = defaultdict(float)
    for (model, project), count in by_labels(found, "gemini_cli_turns_total").items():
        fresh, cached, tool = (tokens[k, model, project] for k in ("input", "cached", "tool"))
        saved = cached * (price["input", model] - price["cached", model]) / 1_000_000
        assert savings[model, project] == pytest.approx(saved, rel=1e-9)
        prompts[model] += fresh + cached + tool
        turns[model] += count
    sizes = {model: n for (model,), n in by_labels(found, f"{PROMPTS}_sum").items()}
    assert sizes == prompts
    assert {model: n for (model,), n in by_labels(found, f"{PROMPTS}_count").items()} == turns
    assert found["gemini_cli_exporter_ledger_turns", ()] == sum(turns.values())


@pytest.mark.parametrize("name", ["text", "openmetrics"])
def test_every_family_is_well_formed(shown: Shown, name: str) -> None:
    body: bytes = getattr(shown, name)
    lines = body.decode().split("\n")
    assert lines.pop() == ""
    heads = [line.split(" ", 3) for line in lines if line.startswith("# HELP ")]
    assert len({head[2] for head in heads}) == len(heads), "a family stands in one place"
    assert all(re.fullmatch(r"[A-Z1](?!.*\. ).*\.", head[3]) for head in heads)
    typed = [line.split(" ")[2] for line in lines if line.startswith("# TYPE ")]
    assert typed == [head[2] for head in heads]
    for family in families(body):
        counter = family.type == "counter"
        labels = {tuple(sorted(s.labels.keys() - {"le"})) for s in family.samples}
        assert len(labels) <= 1
        assert all(sample.timestamp is None for sample in family.samples)
        assert all(math.isfinite(sample.value) for sample in family.samples)
        assert all(sample.name.endswith("_total") == counter for sample in family.samples)
        assert not family.name.endswith("_total"), "the parsers cut it off for counters"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
def test_promtool_finds_nothing_to_say(shown: Shown) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=shown.text, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# The process


@FORMATS
def test_the_process_is_described_but_for_its_start(tmp_path: Path, content_type: str) -> None:
    """Collectors that take the start for that of all counters would count a lifetime again."""
    with home(tmp_path) as scratch:
        body = Exposition(scratch.ledger, scratch.stats, scratch.clock).render(content_type)
    found = {name for name, _ in series(body) if name.startswith("process_")}
    assert "process_start_time_seconds" not in found
    if platform.system() == "Linux":
        assert {"process_cpu_seconds_total", "process_resident_memory_bytes"} <= found


# Labels


class FixedLedger:
    """Stands in for a ledger that holds one snapshot."""

    created = 0
    overflow: dict[str, int] = {}  # noqa: RUF012

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def snapshot(self) -> Snapshot:
        return self._snapshot

    def spending(self, spans: object) -> Spending:
        return Spending({}, {})

    def size(self) -> int:
        return 0


def one_of_each(project: str, model: str, tool: str) -> Exposition:
    """Return the exposition of a single turn with a tool call."""
    total = PairTotal(1, TokenUsage(1, 2, 3, 4, 5), None, 0, 15)
    snapshot = Snapshot(
        generation=1,
        pairs={(project, model): total},
        tools={(project, model, tool): ToolTotal(1, 0, 0)},
        prompts={},
        activity={},
        prices={},
        unpriced_turns={model: 1},
        ledger_turns=1,
        held={audience: frozenset() for audience in Audience},
    )
    return Exposition(cast(Ledger, FixedLedger(snapshot)), Stats(0.0), lambda: 0)


CLEANED = st.text(st.characters(codec="utf-8", exclude_characters="\x1f"), min_size=1)
TRICKY = st.text('"\\\n{}=, n#é', min_size=1) | CLEANED


@FORMATS
@given(project=TRICKY, model=TRICKY, tool=TRICKY)
def test_any_label_value_survives_being_rendered_and_parsed(
    content_type: str, project: str, model: str, tool: str
) -> None:
    found = series(one_of_each(project, model, tool).render(content_type))
    assert by_labels(found, "gemini_cli_turns_total") == {(model, project): 1}
    assert by_labels(found, "gemini_cli_unpriced_turns") == {(model,): 1}
    assert by_labels(found, "gemini_cli_tool_calls_total") == {(model, project, tool): 1}
    kinds = by_labels(found, "gemini_cli_tokens_total")
    assert kinds == {(kind, model, project): n for n, kind in enumerate(KINDS, 1)}


@FORMATS
def test_names_that_people_and_programs_chose_survive(tmp_path: Path, content_type: str) -> None:
    """From the folder and the record on, where line breaks are taken out."""
    with home(tmp_path) as scratch:
        calls = [("c-1", 'say "hi"\\', "success")]
        reply = gemini(model='my "own"\\n\nmodel', calls=calls)
        scratch.write(header(), reply, project='a "b" \\ {c}\nd')
        scratch.scan()
        body = Exposition(scratch.ledger, scratch.stats, scratch.clock).render(content_type)
    called = by_labels(series(body), "gemini_cli_tool_calls_total")
    assert called == {('my "own"\\nmodel', 'a "b" \\ {c}d', 'say "hi"\\'): 1}


@pytest.fixture
def relabelled(
    real_sets: dict[str, RealSet], tmp_path: Path
) -> Iterator[Callable[[ProjectLabel], tuple[Home, bytes]]]:
    """Show the ledger of a home with several projects with another label."""
    real = real_sets["0.61.0-slug_collision"]
    with home(tmp_path, real.gemini) as scratch:
        scratch.scan()

        def show(label: ProjectLabel) -> tuple[Home, bytes]:
            scratch.rules = LabelRules(label)
            scratch.restart()
            return scratch, Exposition(scratch.ledger, scratch.stats, scratch.clock).render()

        yield show


Relabelled = Callable[[ProjectLabel], tuple[Home, bytes]]


def test_without_the_project_label_all_projects_are_one(relabelled: Relabelled) -> None:
    scratch, body = relabelled(ProjectLabel.NONE)
    found = series(body)
    assert not any("project" in dict(labels) for _, labels in found)
    assert found["gemini_cli_sessions_total", ()] > 1
    turns = by_labels(found, "gemini_cli_turns_total")
    assert sum(turns.values()) == scratch.ledger.snapshot().ledger_turns == 7
    assert len(turns) == len({model for (model,) in turns})


def test_the_project_label_can_be_the_path(relabelled: Relabelled) -> None:
    slugs = {key[1] for key in by_labels(series(relabelled(ProjectLabel.SLUG)[1]), TURNS)}
    paths = {key[1] for key in by_labels(series(relabelled(ProjectLabel.PATH)[1]), TURNS)}
    assert len(paths) == len(slugs) == 3
    assert all(path.startswith("/home/dev/") for path in paths)


# Content negotiation

OPENMETRICS_FIRST = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROTOBUF_FIRST = "application/vnd.google.protobuf;encoding=delimited;q=0.7," + PROMETHEUS_3
TEXT_FIRST = "text/plain;version=0.0.4;q=1,*/*;q=0.1"
FIREFOX = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        pytest.param(OPENMETRICS_FIRST, OPENMETRICS, id="Prometheus 2.42"),
        pytest.param(PROMETHEUS_3, OPENMETRICS, id="Prometheus 3"),
        pytest.param(PROTOBUF_FIRST, OPENMETRICS, id="Prometheus 3 with protobuf"),
        pytest.param(TEXT_FIRST, TEXT, id="vmagent"),
        pytest.param("*/*", TEXT, id="curl"),
        pytest.param(FIREFOX, TEXT, id="browser"),
        pytest.param("", TEXT, id="no header"),
        ("application/openmetrics-text", OPENMETRICS),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", OPENMETRICS),
        ("APPLICATION/OpenMetrics-Text;Version=1.0.0", OPENMETRICS),
        ("text/plain;q=0.5, application/openmetrics-text;q=0.6", OPENMETRICS),
        ("text/plain;q=0.6, application/openmetrics-text;q=0.5", TEXT),
        ("application/openmetrics-text;version=0.0.1", TEXT),
        ("application/openmetrics-text;version=2.0.0", TEXT),
        ("application/openmetrics-text;version=x", TEXT),
        ("application/openmetrics-text;q=0", TEXT),
        ("application/openmetrics-text;q=nan", TEXT),
        ("application/openmetrics-text;q=", TEXT),
        ("application/openmetrics-text;q=2", TEXT),
        ("application/openmetrics-text2", TEXT),
        (";,=;q=,,", TEXT),
        ("\xff\x00\u0661;q=\u0661", TEXT),
    ],
)
def test_the_format_is_the_one_asked_for(accept: str, content_type: str) -> None:
    assert negotiate(accept) == content_type


@given(st.text() | st.text("application/openmetrics-text;version=q,. 01"))
def test_whatever_is_asked_one_of_the_two_formats_is_given(accept: str) -> None:
    assert negotiate(accept) in (TEXT, OPENMETRICS)
