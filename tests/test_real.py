"""The fixtures themselves: what the loader promises to the tests that use them."""

from __future__ import annotations

import csv
import re
import tarfile
from collections import Counter
from pathlib import Path, PurePosixPath

import pytest

from tests.real import (
    ARCHIVE,
    DATA,
    INDEX,
    RealSet,
    ToolCount,
    Usage,
    Write,
    apply,
    names,
)

HASHED = "0.28.2-rewind"
REWIND = "0.36.0-rewind"


def totals(real: RealSet, watched: bool = False) -> tuple[Usage, ToolCount]:
    expected = real.expected(watched)
    return (
        sum(expected.usage.values(), Usage()),
        sum(expected.tools.values(), ToolCount()),
    )


def tree(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def numbers(pattern: str) -> list[int]:
    match = re.search(pattern, (DATA / "README.md").read_text(encoding="utf-8"))
    assert match, pattern
    return [int(number) for number in match.groups()]


def test_the_archive_holds_as_many_sets_as_its_readme_says(real_sets: dict[str, RealSet]) -> None:
    assert numbers(r"^# .*\s+(\d+) homes") == [len(real_sets)]
    assert numbers(r"(\d+) sets have a replay") == [
        sum(real.has_replay for real in real_sets.values())
    ]


@pytest.mark.parametrize(
    ("watched", "pattern"),
    [
        (False, r"(\d+) turns, (\d+) tokens, (\d+) tool calls to find"),
        (True, r"(\d+) turns, (\d+) tokens, (\d+) tool calls for\s+a"),
    ],
    ids=["final", "watched"],
)
def test_all_sets_together_hold_what_the_readme_says(
    real_sets: dict[str, RealSet], watched: bool, pattern: str
) -> None:
    each = [totals(real, watched) for real in real_sets.values()]
    usage = sum((usage for usage, _ in each), Usage())
    tools = sum((tools for _, tools in each), ToolCount())
    assert [usage.turns, usage.tokens, tools.calls] == numbers(pattern)


def test_the_index_agrees_with_the_sets(real_sets: dict[str, RealSet]) -> None:
    rows = [("set", "replay", "turns", "tokens", "tool_calls")]
    for real in real_sets.values():
        usage, tools = totals(real)
        counts = (str(usage.turns), str(usage.tokens), str(tools.calls))
        rows.append((real.name, "yes" if real.has_replay else "no", *counts))
    with INDEX.open(encoding="utf-8", newline="") as file:
        assert [tuple(row) for row in csv.reader(file)] == rows


def test_names_are_known_without_unpacking(real_sets: dict[str, RealSet]) -> None:
    assert names() == list(real_sets)
    assert names(replay=True) == [name for name, real in real_sets.items() if real.has_replay]


def test_the_archive_is_reproducible() -> None:
    """Order, owners, times and modes do not depend on who packs it."""
    with tarfile.open(ARCHIVE) as archive:
        members = archive.getmembers()
    paths = [PurePosixPath(member.name).parts for member in members]
    assert paths == sorted(set(paths))
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members} == {(0, 0, "", "", 0)}
    assert {(m.isdir(), m.isfile(), m.mode) for m in members} == {
        (True, False, 0o755),
        (False, True, 0o644),
    }


@pytest.mark.parametrize("name", names())
def test_sums_over_projects_equal_those_of_the_truth(
    real_sets: dict[str, RealSet], name: str
) -> None:
    real = real_sets[name]
    tables = {False: real.truth["expected"]}
    tables[True] = real.truth.get("expected_watched", tables[False])
    for watched, table in tables.items():
        raw = Counter[str]()
        for row in table["usage"]:
            raw.update({key: row[key] for key in row.keys() - {"project", "model"}})
        calls = Counter[str]()
        for row in table["tool_calls"]:
            calls[row["status"]] += row["n"]
        usage, tools = totals(real, watched)
        assert usage == Usage(
            raw["turns"],
            raw["input"] - raw["cached"],
            raw["cached"],
            raw["output"],
            raw["thoughts"],
            raw["tool"],
        )
        assert usage.tokens == raw["total"]
        assert tools == ToolCount(calls.total(), calls["error"], calls["cancelled"])


@pytest.mark.parametrize("name", names())
def test_the_truth_is_the_sum_of_the_recorded_api_calls(
    real_sets: dict[str, RealSet], name: str
) -> None:
    """The folded table can be had from the ledger as well, with the models that were asked."""
    real = real_sets[name]
    usage: dict[tuple[str, str], Usage] = {}
    for call in real.truth["api_calls"]:
        if call["recorded"]:
            key = real.labels[call["project"]], call["model"]
            of = call["usage"]
            usage[key] = usage.get(key, Usage()) + Usage(
                1,
                of["input"] - of["cached"],
                of["cached"],
                of["output"],
                of["thoughts"],
                of["tool"],
            )
    assert real.expected().usage == usage


@pytest.mark.parametrize("name", names(replay=True))
def test_a_whole_replay_gives_the_home_byte_for_byte(
    real_sets: dict[str, RealSet], name: str, tmp_path: Path
) -> None:
    real = real_sets[name]
    writes = list(real.play(tmp_path))
    assert [write.seq for write in writes] == sorted({write.seq for write in writes})
    assert tree(tmp_path) == tree(real.gemini)


def test_a_reader_can_step_between_two_writes(
    real_sets: dict[str, RealSet], tmp_path: Path
) -> None:
    """Among the states it meets are the empty transcript and the one before the rewind."""
    states = []
    for write in real_sets[REWIND].play(tmp_path):
        if "/chats/" in write.path:
            states.append((write.op, (tmp_path / write.path).read_bytes()))
    assert ("truncate", b"") in states
    assert max(len(data) for _, data in states) > len(states[-1][1])


def test_a_write_of_unknown_operation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="write 7: unknown operation 'chmod'"):
        apply(Write(seq=7, time=0.0, op="chmod", path="projects.json"), tmp_path)


def test_watching_shows_more_only_where_something_was_taken_away(
    real_sets: dict[str, RealSet],
) -> None:
    more = {
        name: real.truth["scenario"]
        for name, real in real_sets.items()
        if real.expected(watched=True) != real.expected()
    }
    assert more.keys() <= set(names(replay=True))
    assert Counter(more.values()) == {
        "retention": 3,
        "rewind": 2,
        "retention_subagent": 1,
        "same_session_twice": 1,
        "subagent": 1,
        "subagent_parallel": 1,
    }


def test_polled_reads_end_with_the_file_as_it_is(real_sets: dict[str, RealSet]) -> None:
    real = real_sets["0.36.0-polled"]
    polls = list(real.polled())
    assert len(polls) == 103
    assert sum(poll.data == b"" for poll in polls) == 21
    assert polls[-1].data == (real.gemini / polls[-1].path).read_bytes()
    assert not list(real_sets[REWIND].polled())


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        (HASHED, {"/home/dev/checkout-api": "unknown-227d088d"}),
        (REWIND, {"/home/dev/checkout-api": "checkout-api"}),
        ("0.28.2+0.36.0+0.28.2-diverge", {"/home/dev/checkout-api": "checkout-api"}),
        (
            "0.8.2+0.22.4+0.28.2+0.36.0+0.45.2+0.61.0-two-projects-years",
            {
                "/home/dev/billing/api": "api",
                "/home/dev/checkout-api": "unknown-227d088d",
                "/home/dev/site/api": "api-1",
            },
        ),
        (
            "0.61.0-unicode_path",
            {
                "/home/dev/Projekte/Köln Büro": "k-ln-b-ro",
                "/home/dev/my project (2)": "my-project-2",
                "/home/dev/プロジェクト": "project",
            },
        ),
        ("0.3.4-plain", {}),
    ],
)
def test_a_project_is_labelled_by_its_slug_or_its_hash(
    real_sets: dict[str, RealSet], name: str, labels: dict[str, str]
) -> None:
    assert real_sets[name].labels == labels


@pytest.mark.parametrize("name", ["0.45.2-empty_after_tool", "0.61.0-empty_after_tool"])
def test_a_turn_without_a_model_counts_for_the_model_that_was_asked(
    real_sets: dict[str, RealSet], name: str
) -> None:
    real = real_sets[name]
    assert [row["turns"] for row in real.truth["expected"]["usage"]] == [1, 2]
    ((_, usage),) = real.expected().usage.items()
    assert usage.turns == 3


def test_a_copy_can_be_changed(real_sets: dict[str, RealSet], tmp_path: Path) -> None:
    real = real_sets[REWIND]
    before = tree(real.gemini)
    copy = real.copy_to(tmp_path / "home" / ".gemini")
    assert tree(copy) == before
    for path in copy.glob("tmp/*/chats/*.json"):
        path.write_bytes(b"")
    assert tree(copy) != before
    assert tree(real.gemini) == before
