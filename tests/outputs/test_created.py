"""Start timestamps in OpenMetrics: 1 ms before the first turn, whatever comes after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from exporter.outputs.prometheus import OPENMETRICS, TEXT, Exposition
from tests.support import Home, gemini, header, home, millis

FIRST = "2026-11-30T20:00:00.000Z"
LATER = "2026-11-30T20:30:00.000Z"
START = (millis(FIRST) - 1) / 1000


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Home]:
    with home(tmp_path) as scratch:
        yield scratch


def rendered(scratch: Home, content_type: str = OPENMETRICS, *, created: bool = True) -> str:
    exposition = Exposition(scratch.ledger, scratch.stats, scratch.clock, created=created)
    return exposition.render(content_type).decode()


def created(text: str) -> dict[str, set[float]]:
    """Return the start timestamps of each family that has some."""
    return {
        family.name: {s.value for s in family.samples if s.name.endswith("_created")}
        for family in text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        if any(sample.name.endswith("_created") for sample in family.samples)
    }


def test_every_counter_and_histogram_has_its_start_and_no_gauge(scratch: Home) -> None:
    calls = [("c-1", "read_file", "success")]
    scratch.write(header(), gemini("a", time=FIRST, calls=calls), gemini("b", time=LATER))
    scratch.write(gemini("c", time=LATER, model="nobody-prices-this"), name="session-b.jsonl")
    scratch.scan()
    found = created(rendered(scratch))
    usage = {name: starts for name, starts in found.items() if "_exporter_" not in name}
    later = (millis(LATER) - 1) / 1000
    assert usage == {
        "gemini_cli_turns": {START, later},
        "gemini_cli_tokens": {START, later},
        "gemini_cli_cost_usd": {START},
        "gemini_cli_cache_savings_usd": {START},
        "gemini_cli_unpriced_tokens": {later},
        "gemini_cli_tool_calls": {START},
        "gemini_cli_tool_errors": {START},
        "gemini_cli_tool_cancellations": {START},
        "gemini_cli_turn_prompt_tokens": {START, later},
        "gemini_cli_sessions": {START},
    }
    own = {name: starts for name, starts in found.items() if "_exporter_" in name}
    assert set().union(*own.values()) == {scratch.stats.started}


def test_an_earlier_turn_found_later_and_a_restart_change_no_start(scratch: Home) -> None:
    scratch.write(header(), gemini("a", time=FIRST))
    scratch.scan()
    before = created(rendered(scratch))["gemini_cli_tokens"]
    scratch.write(gemini("b", time="2026-11-01T08:00:00.000Z"), name="session-old.jsonl")
    scratch.scan()
    assert created(rendered(scratch))["gemini_cli_tokens"] == before == {START}
    scratch.restart()
    assert created(rendered(scratch))["gemini_cli_tokens"] == before


def test_without_the_setting_and_in_the_text_format_there_are_none(scratch: Home) -> None:
    scratch.write(header(), gemini())
    scratch.scan()
    assert "_created{" not in rendered(scratch, created=False)
    assert "_created{" not in rendered(scratch, TEXT)
