"""OTLP: the same metrics as `/metrics`, with names that become theirs again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

import exporter
from exporter.ledger.labels import LabelRules
from exporter.ledger.model import Batch, Project, Role, TokenUsage, Turn, message_key
from exporter.ledger.series import START_BEFORE_MS
from exporter.ledger.store import Ledger
from exporter.outputs.catalog import CATALOG, rows
from exporter.outputs.genai import GENAI
from exporter.outputs.metric import Buckets, Metric, Type, View
from exporter.outputs.otlp import resource
from exporter.outputs.otlp_names import Attributed, attributed
from exporter.transcripts.collector import Collector
from tests.otlp_points import Attributes, Histogram, Point
from tests.outputs.pushing import Pushing, by_series
from tests.real import RealSet
from tests.support import BOOK, Clock

ALL = tuple(map(attributed, CATALOG))

WHOLE_WORDS = {"s": "seconds", "By": "bytes"}
"""What receivers add for a unit. Those in braces are comments and add nothing."""


def translated(metric: Attributed) -> str:
    """Return the Prometheus name by the OpenTelemetry specification's rules, suffixes added.

    https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/
    """
    name = re.sub("[^a-zA-Z0-9_:]+", "_", metric.name)
    unit = WHOLE_WORDS.get(re.sub(r"\{[^}]*\}", "", metric.unit), "")
    assert unit or not re.sub(r"\{[^}]*\}", "", metric.unit), "a unit with no word of its own"
    if unit and not name.endswith(f"_{unit}"):
        name += f"_{unit}"
    if metric.metric.type is Type.COUNTER:
        name = name.removesuffix("_total") + "_total"
    return name


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_the_name_becomes_the_one_of_the_exposition(metric: Attributed) -> None:
    suffix = "_total" if metric.metric.type is Type.COUNTER else ""
    assert translated(metric) == metric.metric.name + suffix


def test_names_are_distinct_and_none_is_gemini_clis_own() -> None:
    names = [metric.name for metric in (*ALL, *GENAI)]
    assert len(set(names)) == len(names)
    assert "gemini_cli.token.usage" not in names
    named = {metric.name: metric.unit for metric in ALL}
    assert named["gemini_cli.tokens"] == "{token}"
    assert named["gemini_cli.cost.usd"] == "{USD}"
    assert named["gemini_cli.exporter.read"] == "By"


@pytest.fixture(scope="module")
def pushed(
    real_sets: dict[str, RealSet], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Pushing, Sequence[Point]]]:
    """All real transcripts in one ledger, pushed once."""
    pushing = Pushing(tmp_path_factory.mktemp("otlp"), genai=True)
    with closing(pushing.ledger):
        roots = [str(real.gemini) for real in real_sets.values()]
        stats = pushing.stats
        collector = Collector(roots, pushing.ledger, stats, pushing.clock)
        with closing(collector):
            collector.scan()
        pushing.push()
        yield pushing, pushing.mailbox.arrived[0]


def expected(metric: Metric, view: View) -> Iterator[tuple[tuple[str, ...], float | Histogram]]:
    for values, value in rows(metric, view):
        if isinstance(value, Buckets):
            buckets = [new - old for old, new in pairwise((0, *value.counts))]
            count = value.counts[-1]
            yield values, Histogram(count, value.sum, value.edges, tuple(buckets))
        else:
            yield values, value


def attributes(metric: Attributed, values: Sequence[str]) -> Attributes:
    pairs = zip(metric.keys, values, strict=True)
    return tuple(sorted((key, text) for key, text in (*pairs, *metric.constant.items()) if text))


@pytest.mark.parametrize("metric", [*ALL, *GENAI], ids=lambda metric: metric.name)
def test_every_series_is_sent_as_it_is(
    metric: Attributed, pushed: tuple[Pushing, Sequence[Point]]
) -> None:
    pushing, arrived = pushed
    kind, family = metric.metric.type, metric.metric.family
    starts, view = pushing.ledger.starts(), pushing.exposition.view()
    found = by_series([point for point in arrived if point.name == metric.name])
    series = dict(expected(metric.metric, view))
    assert {*found} == {(metric.name, attributes(metric, values)) for values in series}
    for values, value in series.items():
        point = found[metric.name, attributes(metric, values)]
        assert (point.description, point.unit) == (metric.metric.help, metric.unit)
        assert point.time == pushing.clock.now * 10**6
        if family:
            assert point.value == value
            assert type(point.value) is type(value)
        if kind is Type.GAUGE:
            assert (point.kind, point.temporality) == ("gauge", "unspecified")
            continue
        assert point.kind == {Type.COUNTER: "sum", Type.HISTOGRAM: "histogram"}[kind]
        assert (point.temporality, point.monotonic) == ("cumulative", kind is Type.COUNTER)
        start = starts[metric.metric.series(values)] - START_BEFORE_MS if family else None
        assert point.start == (start or round(pushing.stats.started * 1000)) * 10**6


def test_counters_by_the_genai_conventions_overlap_as_they_say(
    pushed: tuple[Pushing, Sequence[Point]],
) -> None:
    totals: dict[str, int] = {}
    for point in pushed[1]:
        if point.name.startswith("gen_ai."):
            assert isinstance(point.value, int)
            totals[point.name] = totals.get(point.name, 0) + point.value
            assert dict(point.attributes) | {"gen_ai.operation.name": "generate_content"} == dict(
                point.attributes
            )
            assert {key for key, _ in point.attributes} == {
                "gen_ai.operation.name",
                "gen_ai.provider.name",
                "gen_ai.request.model",
                "gen_ai.token.modality",
                "project",
            }
        elif point.name == "gemini_cli.tokens":
            kind = str(dict(point.attributes)["kind"])
            assert isinstance(point.value, int)
            totals[kind] = totals.get(kind, 0) + point.value
    usage = "gen_ai.client.inference.usage"
    sums = {
        f"{usage}.input_tokens": totals["input"] + totals["cached"] + totals["tool"],
        f"{usage}.output_tokens": totals["output"] + totals["thoughts"],
        f"{usage}.cache_read.input_tokens": totals["cached"],
        f"{usage}.reasoning.output_tokens": totals["thoughts"],
    }
    assert {name: total for name, total in totals.items() if name in sums} == sums
    assert all(sums.values())


def test_the_resource_names_the_exporter_whatever_the_environment_calls_its_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "gemini-cli")
    monkeypatch.setenv(
        "OTEL_RESOURCE_ATTRIBUTES", "team=web%20shop,service.instance.id=1,owner=ana"
    )
    found = dict(resource("ledger-7").attributes)
    assert {key: text for key, text in found.items() if not key.startswith("telemetry.")} == {
        "service.name": "gemini-cli-exporter",
        "service.instance.id": "ledger-7",
        "service.version": exporter.__version__,
        "team": "web shop",
        "owner": "ana",
    }


def test_the_id_of_a_ledger_stays(tmp_path: Path) -> None:
    ids = []
    for name in ("one", "one", "two"):
        with closing(Ledger(tmp_path / name, BOOK, Clock())) as ledger:
            ids.append(ledger.id)
    assert ids[0] == ids[1] != ids[2]


def test_numbers_beyond_63_bits_are_cut(tmp_path: Path) -> None:
    pushing = Pushing(tmp_path)
    with closing(pushing.ledger):
        pushing.ledger.record(Batch())
        pushing.ledger.finish_scan([])
        pushing.stats.read_bytes = 2**70
        assert pushing.push()["gemini_cli.exporter.read", ()].value == 2**63 - 1


def test_the_owner_is_an_attribute_of_its_own(tmp_path: Path) -> None:
    pushing = Pushing(tmp_path, rules=LabelRules(owner=True))
    with closing(pushing.ledger):
        shop = Project("shop", "/home/ana/shop", "ana")
        usage, now = TokenUsage(7), pushing.clock.now
        turn = Turn(message_key("m"), "s", Role.MAIN, shop, "gemini-2.5-pro", now, usage)
        pushing.ledger.record(Batch([turn]))
        pushing.ledger.finish_scan([])
        found = [dict(key) for name, key in pushing.push() if name == "gemini_cli.turns"]
    assert found == [{"model": "gemini-2.5-pro", "owner": "ana", "project": "shop"}]
