"""The reference of all metrics is the program's own list, and no name in it is anybody else's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from exporter.outputs.catalog import CATALOG
from exporter.outputs.metric import Type
from exporter.outputs.prometheus import OPENMETRICS, TEXT, Exposition
from tests.outputs.metrics_doc import PROCESS, render, shown_name
from tests.support import gemini, header, home

GEMINI_CLI = {
    "gemini_cli.agent.duration": "ms",
    "gemini_cli.agent.recovery_attempt.count": "",
    "gemini_cli.agent.recovery_attempt.duration": "ms",
    "gemini_cli.agent.run.count": "",
    "gemini_cli.agent.turns": "",
    "gemini_cli.api.request.breakdown": "ms",
    "gemini_cli.api.request.count": "",
    "gemini_cli.api.request.latency": "ms",
    "gemini_cli.chat.content_retry.count": "",
    "gemini_cli.chat.content_retry_failure.count": "",
    "gemini_cli.chat.invalid_chunk.count": "",
    "gemini_cli.chat_compression": "",
    "gemini_cli.cpu.usage": "percent",
    "gemini_cli.exit.fail.count": "",
    "gemini_cli.file.operation.count": "",
    "gemini_cli.hook_call.count": "",
    "gemini_cli.hook_call.latency": "ms",
    "gemini_cli.lines.changed": "",
    "gemini_cli.memory.usage": "bytes",
    "gemini_cli.model_routing.failure.count": "",
    "gemini_cli.model_routing.latency": "ms",
    "gemini_cli.performance.baseline.comparison": "percent",
    "gemini_cli.performance.regression": "",
    "gemini_cli.performance.regression.percentage_change": "percent",
    "gemini_cli.performance.score": "score",
    "gemini_cli.plan.execution.count": "",
    "gemini_cli.session.count": "",
    "gemini_cli.slash_command.model.call_count": "",
    "gemini_cli.startup.duration": "ms",
    "gemini_cli.token.efficiency": "ratio",
    "gemini_cli.token.usage": "",
    "gemini_cli.tool.call.count": "",
    "gemini_cli.tool.call.latency": "ms",
    "gemini_cli.tool.execution.breakdown": "ms",
    "gemini_cli.tool.queue.depth": "count",
    "gemini_cli.ui.flicker.count": "",
    "gen_ai.client.operation.duration": "s",
    "gen_ai.client.token.usage": "{token}",
}
"""The metrics that Gemini CLI itself sends by OpenTelemetry, with their units."""

GEMINI_CLI_PREFIXES = ("gemini_cli_extension_", "gemini_cli_extensions_")
"""How others of them begin."""

UNITS = {"ms": "milliseconds", "s": "seconds"}


def translated(name: str, unit: str) -> Iterator[str]:
    """Yield what Prometheus may call an OpenTelemetry metric, whatever its type and settings."""
    word = "" if unit.startswith("{") else UNITS.get(unit, unit)
    plain = name.replace(".", "_")
    for base in {plain, f"{plain}_{word}".rstrip("_"), f"{plain}_ratio"}:
        yield from (base + suffix for suffix in ("", "_total", "_bucket", "_sum", "_count"))


def exposed(folder: Path, content_type: str) -> dict[str, str]:
    """Return the samples of an exposition with something of everything: name -> family."""
    calls = [("c-1", "read_file", "success")]
    with home(folder) as scratch:
        scratch.write(header(), gemini("a", calls=calls))
        scratch.write(header(), gemini("b", model="nobody-prices-this"), name="session-b.jsonl")
        scratch.scan()
        exposition = Exposition(scratch.ledger, scratch.stats, scratch.clock)
        text = exposition.render(content_type).decode()
    parse = parse_openmetrics if content_type == OPENMETRICS else parse_text
    return {sample.name: family.name for family in parse(text) for sample in family.samples}


@pytest.fixture(scope="module", params=[TEXT, OPENMETRICS], ids=["text", "openmetrics"])
def samples(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    return exposed(tmp_path_factory.mktemp("exposed"), request.param)


def test_the_page_is_written_from_the_list(golden: Callable[[str, bytes], None]) -> None:
    golden("../../../docs/metrics.md", render().encode())


def test_the_page_names_each_metric_once_as_it_is_exposed(samples: dict[str, str]) -> None:
    shown, pushed = (
        [line.split("`")[1] for line in part.splitlines() if line.startswith("| `gemini")]
        for part in render().split("## Names in OTLP")
    )
    suffixes = {Type.HISTOGRAM: "_bucket"}
    names = [shown_name(metric) + suffixes.get(metric.type, "") for metric in CATALOG]
    assert shown == pushed == [shown_name(metric) for metric in CATALOG]
    rare = {"gemini_cli_budget_usd", "gemini_cli_project_budget_usd"}
    assert set(names) - samples.keys() == rare, "without settings there is no budget"


@pytest.mark.skipif(sys.platform != "linux", reason="process metrics are read from /proc")
def test_the_process_shows_what_the_page_says_and_not_its_start(samples: dict[str, str]) -> None:
    assert {name for name in samples if name.startswith("process_")} == {n for n, *_ in PROCESS}
    assert "process_start_time_seconds" not in samples


def test_no_name_is_one_of_gemini_clis_own(samples: dict[str, str]) -> None:
    """Both may arrive in one Prometheus, and series of two meanings must not share a name."""
    theirs = {name for given in GEMINI_CLI.items() for name in translated(*given)}
    ours = {*samples, *samples.values(), *map(shown_name, CATALOG), *(m.name for m in CATALOG)}
    assert ours & theirs == set()
    assert [name for name in ours if name.startswith(GEMINI_CLI_PREFIXES)] == []
    assert theirs >= {
        "gemini_cli_token_usage_total",
        "gemini_cli_api_request_latency_milliseconds_bucket",
        "gemini_cli_memory_usage_bytes",
        "gen_ai_client_token_usage_sum",
    }
