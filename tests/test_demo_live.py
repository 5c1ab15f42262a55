"""The home that lives: its past and each later write are counted as its maker says."""

from __future__ import annotations

import re
from pathlib import Path

from exporter.demo import LiveHome, Truth
from tests.program import Program
from tests.real import Expected, ToolCount, Usage
from tests.support import Clock, Home, counted, home

_HOUR_MS = 3_600_000


def agrees(scratch: Home, truth: Truth) -> bool:
    """Tell whether a scan finds what the maker of the home says is there."""
    usage = {key: Usage(*counts) for key, counts in truth.usage.items()}
    tools = {key: ToolCount(*calls) for key, calls in truth.calls.items()}
    return counted(scratch.scan()) == Expected(usage, tools)


def test_the_past_and_what_is_written_later_are_counted_exactly(tmp_path: Path) -> None:
    clock = Clock()
    live = LiveHome(tmp_path, clock)
    with home(tmp_path, live.root) as scratch:
        truth = live.write_past()
        assert agrees(scratch, truth)
        past, paths = truth.total.turns, set[str]()
        end = clock.now + _HOUR_MS
        while live.next_at() < end:
            clock.now = scratch.clock.now = live.next_at()
            for write in live.write_due():
                truth.add(write.path.split("/")[1], write)
                paths.add(write.path)
        assert agrees(scratch, truth)
        # Every few seconds a turn, and one conversation after the other.
        assert truth.total.turns - past > 300
        assert len(paths) > 10


def test_nothing_is_written_before_its_time(tmp_path: Path) -> None:
    clock = Clock()
    live = LiveHome(tmp_path, clock)
    under_way = [write.at for write in live.write_due()]
    assert clock.now - 60_000 <= min(under_way) <= max(under_way) <= clock.now
    assert live.next_at() > clock.now
    assert live.write_due() == []
    clock.now = live.next_at()
    assert {write.at for write in live.write_due()} == {clock.now}


def test_the_past_is_lively(tmp_path: Path) -> None:
    """Several projects and models, subagents, failing tools, and a spike two days ago."""
    clock = Clock()
    live = LiveHome(tmp_path, clock)
    truth = live.write_past()
    projects, models = zip(*truth.usage, strict=True)
    assert (len(set(projects)), len(set(models))) == (6, 6)
    assert sum(calls.errors for calls in truth.calls.values()) > 100
    assert any(path.parent.name != "chats" for path in live.root.glob("tmp/*/chats/*/*.jsonl"))
    starts = [path.name[8:24] for path in live.root.glob("tmp/*/chats/session-*.jsonl")]
    assert sum(start.startswith("2026-11-28T1") for start in starts) > 15
    assert sum(start.startswith("2026-11-30") for start in starts) > 15


def test_the_program_serves_it_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with Program(tmp_path, (), "demo") as program:
        program.start()
        first = program.metrics()
        assert first.value("gemini_cli_turns_total") >= 4_000
        assert set(first.by_label("gemini_cli_budget_usd", "period")) == {"day", "week", "month"}
        assert first.value("gemini_cli_tool_errors_total") > 0
        turns = first.value("gemini_cli_turns_total")
        later = program.metrics(lambda shown: shown.value("gemini_cli_turns_total") > turns)
        assert later.value("gemini_cli_turns_total") > turns
        found = re.search(r"home=(\S+)", program.log)
        assert found is not None
        assert Path(found[1]).is_dir()
        assert program.stop() == 0
    assert not Path(found[1]).parent.exists()
