"""Real transcripts in, exact counters out: cold, write by write, after restarts and deletions."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from exporter.ledger.store import Ledger
from exporter.ledger.totals import Snapshot
from tests.real import Expected, RealSet, ToolCount, Usage, names
from tests.support import BOOK, Clock, Home, counted, home


def without_projects(expected: Expected) -> Expected:
    """Add the projects up: a hash folder watched before its slug exists keeps its first label."""
    usage: dict[tuple[str, str], Usage] = defaultdict(Usage)
    tools: dict[tuple[str, str, str], ToolCount] = defaultdict(ToolCount)
    for (_, model), turns in expected.usage.items():
        usage["", model] += turns
    for (_, model, tool), calls in expected.tools.items():
        tools["", model, tool] += calls
    return Expected(dict(usage), dict(tools))


def assert_never_falls(before: Snapshot, after: Snapshot) -> None:
    """Hold every sum that a counter or a histogram shows against its former value."""
    for pair, old in before.pairs.items():
        new = after.pairs[pair]
        assert new.turns >= old.turns
        assert all(a >= b for a, b in zip(new.tokens, old.tokens, strict=True))
        assert all(a >= b for a, b in zip(new.cost or (), old.cost or (), strict=True))
        assert new.savings >= old.savings
    for tool, calls in before.tools.items():
        now = after.tools[tool]
        assert now.calls >= calls.calls
        assert (now.errors, now.cancellations) >= (calls.errors, calls.cancellations)
    for model, sizes in before.prompts.items():
        assert all(
            sum(after.prompts[model].buckets[:edge]) >= sum(sizes.buckets[:edge])
            for edge in range(1, len(sizes.buckets) + 1)
        )


@pytest.mark.parametrize("name", names())
def test_cold_read_gives_the_truth(
    name: str, real_sets: dict[str, RealSet], tmp_path: Path
) -> None:
    real = real_sets[name]
    with home(tmp_path, real.gemini) as scratch:
        assert counted(scratch.scan()) == real.expected()
        assert scratch.skipped == {}


@pytest.mark.parametrize("name", names(replay=True))
def test_replay_with_a_look_between_any_two_writes_gives_the_truth(
    name: str, real_sets: dict[str, RealSet], tmp_path: Path
) -> None:
    real = real_sets[name]
    with home(tmp_path) as scratch:
        scratch.root.mkdir()
        before = scratch.scan()
        for _ in real.play(scratch.root):
            after = scratch.scan()
            assert_never_falls(before, after)
            before = after
        expected = real.expected(watched=True)
        assert without_projects(counted(before)) == without_projects(expected)
        assert scratch.skipped == {}


@pytest.fixture
def copied(real_sets: dict[str, RealSet], tmp_path: Path) -> tuple[RealSet, Home]:
    real = real_sets["0.8.2+0.22.4+0.28.2+0.36.0+0.45.2+0.61.0-two-projects-years"]
    real.copy_to(tmp_path / "gemini")
    return real, Home(tmp_path)


def test_a_restart_opens_no_transcript_and_keeps_the_totals(copied: tuple[RealSet, Home]) -> None:
    real, scratch = copied
    scratch.scan()
    scratch.restart()
    assert counted(scratch.ledger.snapshot()) == real.expected()
    assert counted(scratch.scan()) == real.expected()
    assert scratch.stats.read_bytes == 0
    scratch.close()


def test_deleting_all_transcripts_changes_no_total(copied: tuple[RealSet, Home]) -> None:
    real, scratch = copied
    scratch.scan()
    shutil.rmtree(scratch.root)
    assert counted(scratch.scan()) == real.expected()
    scratch.restart()
    assert counted(scratch.scan()) == real.expected()
    scratch.close()


def test_restored_and_copied_transcripts_are_not_counted_again(
    copied: tuple[RealSet, Home], tmp_path: Path
) -> None:
    real, scratch = copied
    scratch.scan()
    shutil.rmtree(scratch.root)
    scratch.scan()
    real.copy_to(scratch.root)
    slug = next(path for path in (scratch.root / "tmp").iterdir() if len(path.name) < 64)
    shutil.copytree(slug, slug.with_name("copy"))
    assert counted(scratch.scan()) == real.expected()
    scratch.close()


def test_many_homes_in_one_ledger_are_counted_once_each(
    real_sets: dict[str, RealSet], tmp_path: Path
) -> None:
    """All sets in one ledger give the sum of all truths, whatever project labels they share."""
    from exporter.ledger.stats import Stats
    from exporter.transcripts.collector import Collector

    clock = Clock()
    ledger = Ledger(tmp_path / "ledger.db", BOOK, clock)
    roots = [str(real.gemini) for real in real_sets.values()]
    for _ in range(2):
        collector = Collector(roots, ledger, Stats(0), clock)
        collector.scan()
        collector.close()
        turns = sum(total.turns for total in ledger.snapshot().pairs.values())
        tokens = sum(total.tokens.total for total in ledger.snapshot().pairs.values())
        calls = sum(total.calls for total in ledger.snapshot().tools.values())
        assert (turns, tokens, calls) == (1273, 8_228_841, 793)
    ledger.close()
