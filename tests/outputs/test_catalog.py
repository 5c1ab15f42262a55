"""The list of metrics: names, labels and help as agreed, and what each of them shows when."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from exporter.ledger.labels import CAPS
from exporter.ledger.pricing import PriceBook, PriceOverride, PriceTier
from exporter.outputs.budget import BUDGET
from exporter.outputs.catalog import CATALOG, rows
from exporter.outputs.metric import Buckets, Metric, Type, Value
from exporter.outputs.own import OWN
from exporter.outputs.prometheus import Exposition
from exporter.outputs.usage import USAGE
from tests.support import Home, gemini, header, home, millis

USAGE_LABELS = {"kind", "model", "project", "tool", "period"}
OWN_LABELS = {"reason", "label", "root", "mode", "trigger", "version", "python_version"}
UNITS = ("tokens", "turns", "calls", "errors", "cancellations", "sessions", "usd", "seconds")

BY_NAME = {metric.name.removeprefix("gemini_cli_"): metric for metric in CATALOG}
Rows = dict[tuple[str, ...], Value]
Show = Callable[[str], Rows]


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Home]:
    with home(tmp_path) as scratch:
        yield scratch


@pytest.fixture
def show(scratch: Home) -> Show:
    """Read one metric by its name without the prefix."""

    def show(name: str) -> Rows:
        snapshot = scratch.ledger.snapshot()
        exposition = Exposition(scratch.ledger, scratch.stats, scratch.clock)
        view = exposition.view()._replace(snapshot=snapshot)
        found = list(rows(BY_NAME[name], view))
        assert len(dict(found)) == len(found)
        return dict(found)

    return show


# The list


def test_every_usage_metric_is_in_the_list() -> None:
    expected = {
        "turns": ("model", "project"),
        "tokens": ("kind", "model", "project"),
        "cost_usd": ("kind", "model", "project"),
        "cache_savings_usd": ("model", "project"),
        "unpriced_tokens": ("model", "project"),
        "unpriced_turns": ("model",),
        "tool_calls": ("model", "project", "tool"),
        "tool_errors": ("model", "project", "tool"),
        "tool_cancellations": ("model", "project", "tool"),
        "turn_prompt_tokens": ("model",),
        "sessions": ("project",),
        "active_sessions": ("project",),
        "last_turn_timestamp_seconds": ("project",),
        "price_usd_per_million_tokens": ("kind", "model"),
    }
    assert expected.items() <= {name: metric.labels for name, metric in BY_NAME.items()}.items()


def test_names_are_unique_and_tell_usage_from_own_state() -> None:
    assert len(BY_NAME) == len(CATALOG)
    assert all(not metric.name.startswith("gemini_cli_exporter_") for metric in USAGE)
    assert all(metric.name.startswith("gemini_cli_exporter_") for metric in OWN)


@pytest.mark.parametrize("metric", CATALOG, ids=lambda metric: str(metric.name))
def test_a_metric_keeps_the_rules_for_names_labels_and_help(metric: Metric) -> None:
    assert re.fullmatch(r"gemini_cli(_[a-z]+)+", metric.name)
    assert not metric.name.endswith(("_total", "_count", "_sum", "_bucket", "_created"))
    assert set(metric.labels) <= (USAGE_LABELS if metric in USAGE + BUDGET else OWN_LABELS)
    assert re.fullmatch(r"[A-Z1](?!.*\. ).*\.", metric.help)
    if metric in USAGE:
        assert metric.name.endswith(UNITS)
    if metric.name.endswith("_info"):
        assert (metric.type, "always 1" in metric.help) == (Type.GAUGE, True)


# What is shown when


def test_an_empty_ledger_shows_no_usage_and_all_own_counters_at_zero(show: Show) -> None:
    for name, metric in BY_NAME.items():
        found = show(name)
        if metric in USAGE:
            assert found == {}
        elif metric.type is Type.COUNTER:
            assert found
            assert set(found.values()) == {0}


def test_the_series_of_a_pair_are_born_together(scratch: Home, show: Show) -> None:
    scratch.write(header(), gemini(cached=60, thoughts=5))
    scratch.scan()
    pair = ("gemini-2.5-flash", "shop")
    kinds = {"input": 40, "cached": 60, "output": 10, "thoughts": 5, "tool": 0}
    assert show("turns") == {pair: 1}
    assert show("tokens") == {(kind, *pair): tokens for kind, tokens in kinds.items()}
    assert show("cost_usd").keys() == show("tokens").keys()
    assert show("cache_savings_usd").keys() == {pair}
    assert (show("sessions"), show("active_sessions")) == ({("shop",): 1}, {("shop",): 0})
    assert show("turn_prompt_tokens") == {
        ("gemini-2.5-flash",): Buckets(
            (1e3, 4e3, 16e3, 32e3, 64e3, 128e3, 200e3, 500e3, 1e6), (1,) * 10, 100
        )
    }


def test_calls_errors_and_cancellations_of_a_tool_are_born_together(
    scratch: Home, show: Show
) -> None:
    calls = [("1", "edit", "success"), ("2", "edit", "error"), ("3", "glob", "cancelled")]
    scratch.write(header(), gemini(calls=calls))
    scratch.scan()
    edit, glob = (("gemini-2.5-flash", "shop", tool) for tool in ("edit", "glob"))
    assert show("tool_calls") == {edit: 2, glob: 1}
    assert show("tool_errors") == {edit: 1, glob: 0}
    assert show("tool_cancellations") == {edit: 0, glob: 1}


def test_unpriced_is_not_free(scratch: Home, show: Show) -> None:
    """What has no price has no cost series; what is free costs 0."""
    scratch.book = PriceBook({"free": PriceOverride(PriceTier(Decimal(0), Decimal(0)))})
    scratch.restart()
    scratch.write(header(), gemini("a", model="free"), gemini("b", model="none"))
    scratch.scan()
    assert {key[1:]: cost for key, cost in show("cost_usd").items()} == {("free", "shop"): 0}
    assert show("cache_savings_usd") == {("free", "shop"): 0}
    assert show("unpriced_tokens") == {("none", "shop"): 110}
    assert show("unpriced_turns") == {("free",): 0, ("none",): 1}
    assert {model for _, model in show("price_usd_per_million_tokens")} == {"free"}


def test_a_price_that_comes_later_ends_the_unpriced_turns(scratch: Home, show: Show) -> None:
    scratch.write(header(), gemini(model="none"))
    scratch.scan()
    assert show("unpriced_turns") == {("none",): 1}
    scratch.book = PriceBook({"none": PriceOverride(PriceTier(Decimal(1), Decimal(2)))})
    scratch.restart()
    assert show("unpriced_turns") == {("none",): 0}
    assert show("unpriced_tokens") == {("none", "shop"): 110}, "it was so when they were counted"
    costs = [cost for cost in show("cost_usd").values() if not isinstance(cost, Buckets)]
    assert sum(costs) == pytest.approx(100e-6 + 20e-6)


def test_a_session_is_active_for_five_minutes_and_then_zero(scratch: Home, show: Show) -> None:
    scratch.write(header(), gemini(time="2026-11-30T20:00:00Z"))
    scratch.clock.now = millis("2026-11-30T20:00:01Z")
    scratch.scan()
    for now, active in (("20:00:01", 1), ("20:04:59.999", 1), ("20:05:00", 0), ("23:00:00", 0)):
        scratch.clock.now = millis(f"2026-11-30T{now}+00:00")
        assert show("active_sessions") == {("shop",): active}
    assert show("last_turn_timestamp_seconds") == {("shop",): millis("2026-11-30T20:00Z") / 1000}
    assert show("sessions") == {("shop",): 1}


def test_a_subagent_is_no_session_of_its_own(scratch: Home, show: Show) -> None:
    scratch.write(header("5e551001-0000"), gemini("a"))
    agent = scratch.chats(parent="5e551001-0000") / "agent.jsonl"
    scratch.write(header("a6e27001-0000", "subagent"), gemini("b"), name=str(agent))
    scratch.scan()
    assert show("turns") == {("gemini-2.5-flash", "shop"): 2}
    assert show("sessions") == {("shop",): 1}


def test_own_state_follows_the_files(
    scratch: Home, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(scratch.root.parent))
    path = scratch.write(header(), gemini(), b'{"id":\n')
    scratch.scan()
    assert show("exporter_files") == {("~/gemini",): 1}
    assert show("exporter_read_bytes") == {(): path.stat().st_size}
    assert show("exporter_pending_bytes") == {(): 0}
    assert show("exporter_scans") == {(): 1}
    assert show("exporter_last_scan_timestamp_seconds") == {(): scratch.clock.now / 1000}
    assert show("exporter_ledger_turns") == {(): 1}
    assert show("exporter_ledger_writable") == {(): 1}
    assert show("exporter_records_skipped")["bad_json",] == 1
    path.unlink()
    scratch.scan()
    assert show("exporter_files") == {("~/gemini",): 0}
    assert show("exporter_ledger_turns") == {(): 1}


def test_a_root_elsewhere_is_shown_whole(
    scratch: Home, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ana")
    scratch.scan()
    assert show("exporter_files") == {(str(scratch.root),): 0}


def test_the_lag_is_measured_for_turns_since_the_start(scratch: Home, show: Show) -> None:
    scratch.write(header(), gemini("old", time="2026-11-30T20:59:59Z"))
    scratch.write(gemini("new", time="2026-11-30T21:00:01Z"))
    scratch.clock.now += 3_000
    scratch.scan()
    (lag,) = show("exporter_ingest_lag_seconds").values()
    assert isinstance(lag, Buckets)
    assert (lag.sum, lag.counts[-1]) == (2.0, 1)
    assert dict(zip(lag.edges, lag.counts, strict=False))[2.5] == 1
    assert dict(zip(lag.edges, lag.counts, strict=False))[1.0] == 0


def test_a_name_beyond_its_cap_is_counted_as_overflow(
    scratch: Home, show: Show, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CAPS, "model", 2)
    replies = [gemini(str(number), model=f"m-{number}") for number in range(4)]
    scratch.write(header(), *replies)
    scratch.scan()
    assert show("exporter_label_overflow") == {("model",): 2, ("project",): 0, ("tool",): 0}
    assert show("turns") == {("m-0", "shop"): 1, ("m-1", "shop"): 1, ("other", "shop"): 2}
