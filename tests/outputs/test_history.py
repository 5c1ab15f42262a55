"""The written past equals the ledger at every moment, and ends as the live counters are."""

from __future__ import annotations

import io
import sqlite3
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import groupby, pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from exporter.demo import Plan, write_home
from exporter.ledger.labels import LabelRules, ProjectLabel
from exporter.ledger.model import KINDS, PICO, PROMPT_EDGES, Role, Status
from exporter.ledger.pricing import PriceBook, PriceOverride, PriceTier
from exporter.outputs.history import (
    FAR_MS,
    JOIN_MS,
    NEAR_MS,
    PAUSE_MS,
    STEP_MS,
    HistoryError,
    HistoryOptions,
    between,
    parse_label,
    write_history,
)
from exporter.outputs.prometheus import OPENMETRICS, Exposition
from exporter.outputs.running import FAMILIES
from tests.real import RealSet, names
from tests.support import Home, gemini, header, home, millis

MINUTE = 60_000
HOUR = 60 * MINUTE
SIZES = "gemini_cli_turn_prompt_tokens"

Series = tuple[str, frozenset[tuple[str, str]]]
Samples = list[tuple[int, float]]


def written(path: Path, options: HistoryOptions | None = None) -> str:
    out = io.BytesIO()
    write_history(path, out, options or HistoryOptions())
    return out.getvalue().decode()


def families(document: str) -> Iterator[Metric]:
    """Yield what prometheus_client reads, whose types are not written down."""
    yield from text_string_to_metric_families(document)  # type: ignore[no-untyped-call]


def documents(text: str) -> Iterator[str]:
    """Yield documents that prometheus_client reads: of a histogram only one point each.

    It drops samples of a second one, as it takes them for repetitions of the first.
    """
    points, others = list[str](), list[str]()
    for line in text.splitlines(keepends=True):
        (points if line.startswith(SIZES) else others).append(line)
    yield "".join(others)
    for _, point in groupby(points, lambda line: line.split()[-1]):
        yield f"# TYPE {SIZES} histogram\n{''.join(point)}# EOF\n"


def parsed(text: str) -> dict[Series, Samples]:
    """Return the samples of each series, their times in milliseconds."""
    found: dict[Series, Samples] = defaultdict(list)
    for document in documents(text):
        for family in families(document):
            for sample in family.samples:
                stamp: Any = sample.timestamp
                time = stamp.sec * 1000 + stamp.nsec // 1_000_000
                found[sample.name, frozenset(sample.labels.items())].append((time, sample.value))
    return found


def named(found: dict[Series, Samples], name: str, **labels: str) -> Samples:
    """Return the samples of the only series with this name and at least these labels."""
    (samples,) = (
        samples
        for (its_name, its_labels), samples in found.items()
        if its_name == name and labels.items() <= dict(its_labels).items()
    )
    return samples


def live(scratch: Home) -> dict[Series, float]:
    """Return what a reader of /metrics sees of the same families."""
    text = Exposition(scratch.ledger, scratch.stats, scratch.clock).render(OPENMETRICS).decode()
    wanted = {metric.name for metric in FAMILIES}
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families(text)
        if family.name in wanted
        for sample in family.samples
        # A project that only had subagents' turns has a sessions series that was never born.
        if sample.name != "gemini_cli_sessions_total" or sample.value
    }


def rises(path: Path) -> dict[Series, list[tuple[int, int]]]:
    """Return what happened by series, summed from the ledger's rows one by one (money in pico)."""
    found: dict[Series, list[tuple[int, int]]] = defaultdict(list)

    def add(name: str, time: int, rise: int, **labels: str) -> None:
        given = frozenset((label, text) for label, text in labels.items() if text)
        found[name, given].append((time, rise))

    with closing(sqlite3.connect(path)) as db:
        db.row_factory = sqlite3.Row
        label = {
            kind: dict(db.execute(f"SELECT id, label FROM {kind}").fetchall())
            for kind in ("project", "model", "tool")
        }
        rates = {row["id"]: row for row in db.execute("SELECT * FROM rate")}
        times, began = {}, dict[int, int]()
        for row in db.execute("SELECT * FROM turn"):
            time = times[row["id"]] = row["time"]
            if row["role"] == Role.ECHO:
                continue
            if row["role"] == Role.MAIN:
                began[row["session"]] = min(time, began.get(row["session"], time))
            model = label["model"][row["model"]]
            pair = {"project": label["project"][row["project"]], "model": model}
            add("gemini_cli_turns_total", time, 1, **pair)
            rate = rates.get(row["rate"])
            for kind in KINDS:
                add("gemini_cli_tokens_total", time, row[kind], kind=kind, **pair)
                if rate:
                    price = rate[{"thoughts": "output", "tool": "input"}.get(kind, kind)]
                    add("gemini_cli_cost_usd_total", time, row[kind] * price, kind=kind, **pair)
            if rate:
                saved = row["cached"] * max(0, rate["input"] - rate["cached"])
                add("gemini_cli_cache_savings_usd_total", time, saved, **pair)
            else:
                tokens = sum(row[kind] for kind in KINDS)
                add("gemini_cli_unpriced_tokens_total", time, tokens, **pair)
            prompt = row["input"] + row["cached"] + row["tool"]
            for edge in PROMPT_EDGES:
                add(f"{SIZES}_bucket", time, int(prompt <= edge), model=model, le=f"{edge}.0")
            add(f"{SIZES}_bucket", time, 1, model=model, le="+Inf")
            add(f"{SIZES}_sum", time, prompt, model=model)
            add(f"{SIZES}_count", time, 1, model=model)
        for row in db.execute("SELECT * FROM session WHERE main"):
            project = label["project"][row["project"]]
            add("gemini_cli_sessions_total", began[row["id"]], 1, project=project)
        for row in db.execute("SELECT * FROM tool_call"):
            if row["message"] in times:
                triple = {kind: label[kind][row[kind]] for kind in ("project", "model", "tool")}
                for what, rise in (
                    ("calls", 1),
                    ("errors", int(row["status"] == Status.ERROR)),
                    ("cancellations", int(row["status"] == Status.CANCELLED)),
                ):
                    add(f"gemini_cli_tool_{what}_total", times[row["message"]], rise, **triple)
    return found


def at(samples: Samples, moment: int) -> float:
    """Return the value at a moment: that of the latest sample, 0 before the first."""
    index = bisect_right(samples, moment, key=lambda sample: sample[0])
    return samples[index - 1][1] if index else 0


def check(found: dict[Series, Samples], path: Path, seed: str) -> None:
    """Hold every series against the sum of the ledger's rows, in ranges drawn at random."""
    rng = Random(seed)
    happened = rises(path)
    assert {series for series, steps in happened.items() if steps} <= set(found)
    for series, samples in found.items():
        times = [time for time, _ in samples]
        values = [value for _, value in samples]
        assert values[0] == 0
        assert times == sorted(set(times))
        assert values == sorted(values)
        steps = happened[series]
        unit = PICO if "usd" in series[0] else 1
        # Calls without a time of their own are in the history and not in the sum of the rows.
        if "tool_" not in series[0] or values[-1] == sum(rise for _, rise in steps):
            for _ in range(20):
                low, high = sorted(rng.randrange(times[0] - HOUR, times[-1] + HOUR) for _ in "12")
                expected = sum(rise for time, rise in steps if low < time <= high) / unit
                assert at(samples, high) - at(samples, low) == pytest.approx(
                    expected, rel=0, abs=0 if unit == 1 else 1e-9
                )
        rose = {time // HOUR for (_, old), (time, new) in pairwise(samples) if new > old}
        for (before, _), (after, _) in pairwise(samples):
            if before // HOUR == after // HOUR and after // HOUR in rose:
                assert after - before <= FAR_MS


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A ledger of some days with sessions, subagents and pauses; no test may change it."""
    folder = tmp_path_factory.mktemp("demo")
    end = datetime(2026, 11, 30, 20, tzinfo=UTC)
    plan = Plan(end, projects=3, sessions=6, subagents=2, turns=130, turn_bytes=4_000, days=3)
    write_home(folder, plan)
    with home(folder, folder / ".gemini") as scratch:
        scratch.scan()
        yield scratch


@pytest.fixture(scope="module")
def text(demo: Home) -> str:
    return written(demo.path)


def test_a_demo_home_is_written_as_it_happened(demo: Home, text: str) -> None:
    found = parsed(text)
    check(found, demo.path, "demo")
    assert {series: samples[-1][1] for series, samples in found.items()} == live(demo)


@pytest.mark.parametrize("name", names())
def test_a_real_home_is_written_as_it_happened(
    real_sets: dict[str, RealSet], tmp_path: Path, name: str
) -> None:
    with home(tmp_path, real_sets[name].gemini) as scratch:
        if not scratch.scan().ledger_turns:
            return
        found = parsed(written(scratch.path))
        check(found, scratch.path, name)
        assert {series: samples[-1][1] for series, samples in found.items()} == live(scratch)


def test_each_series_starts_a_millisecond_before_its_first_turn(demo: Home, text: str) -> None:
    starts = demo.ledger.starts()
    found = parsed(text)
    for metric in FAMILIES:
        for (name, labels), samples in found.items():
            if name.startswith(metric.name):
                values = [dict(labels).get(label, "") for label in metric.labels]
                assert samples[0] == (starts[metric.series(values)] - 1, 0)


def test_families_read_as_those_of_a_scrape(demo: Home, text: str) -> None:
    exposed = Exposition(demo.ledger, demo.stats, demo.clock).render(OPENMETRICS).decode()
    heads = [line for line in text.splitlines() if line.startswith("# ")]
    assert len(heads) == 2 * len(FAMILIES) + 1
    assert set(heads) <= set(exposed.splitlines())


def test_nothing_is_dated_after_the_last_turn(demo: Home, text: str) -> None:
    last = max(samples[-1][0] for samples in parsed(text).values())
    assert last == max(time for steps in rises(demo.path).values() for time, _ in steps)


def test_it_is_written_in_small_pieces_and_tells_how_far_it_is(demo: Home) -> None:
    class Pieces(io.BytesIO):
        largest = 0

        def write(self, data: Any) -> int:
            self.largest = max(self.largest, len(data))
            return super().write(data)

    out, told = Pieces(), list[tuple[int, int]]()
    write_history(demo.path, out, HistoryOptions(), lambda *done: told.append(done))
    assert out.largest < len(out.getvalue()) / 2
    assert told == sorted(told)
    assert {total for _, total in told} == {told[-1][0]}


@pytest.mark.parametrize(
    ("gap", "expected"),
    [
        (1, []),
        (STEP_MS, []),
        (STEP_MS + 1, [STEP_MS]),
        (3 * STEP_MS, [STEP_MS, 2 * STEP_MS]),
        (11 * STEP_MS, list(range(STEP_MS, 11 * STEP_MS, STEP_MS))),
    ],
)
def test_moments_close_together_have_a_sample_each_minute_between(
    gap: int, expected: list[int]
) -> None:
    assert [time for times in between(0, gap) for time in times] == expected


@pytest.mark.parametrize("gap", [11 * MINUTE + 7, 30 * MINUTE, 59 * MINUTE + 999, 70 * MINUTE])
def test_moments_within_an_hour_are_joined_by_samples_four_minutes_apart(gap: int) -> None:
    times = [0, *(time for times in between(0, gap) for time in times), gap]
    apart = [after - before for before, after in pairwise(times)]
    assert all(0 < step <= FAR_MS for step in apart)
    assert apart[:5] == [STEP_MS] * 5
    assert apart[-5:] == [STEP_MS] * 5


def test_a_long_pause_has_samples_at_its_edges_only() -> None:
    gap = 2 * NEAR_MS + PAUSE_MS + 1
    times = [time for times in between(0, gap) for time in times]
    before = [minute * STEP_MS for minute in range(1, 6)]
    assert times == [*before, *(gap - time for time in reversed(before))]


def scraped(path: Path, time: int) -> None:
    """Note in a ledger that a scraper has had its first answer now."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("INSERT INTO meta VALUES ('scraped', ?)", (time,))
        for table in ("session", "rate"):
            db.execute(
                f"INSERT INTO meta SELECT 'scraped_{table}', coalesce(max(id), 0) FROM {table}"
            )


MORNING = "2026-11-30T09:00:00.000Z"
NOON = millis("2026-11-30T12:00:00+00:00")


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Home]:
    with home(tmp_path) as scratch:
        yield scratch


def turns_of(found: dict[Series, Samples]) -> list[int]:
    """Return when turns were counted."""
    samples = named(found, "gemini_cli_turns_total")
    return [time for (_, old), (time, new) in pairwise(samples) if new > old]


def test_history_ends_before_a_scraper_was_first_answered(scratch: Home) -> None:
    scratch.write(
        gemini("g-1", time=MORNING),
        gemini("g-2", time="2026-11-30T11:54:59.999Z"),
        gemini("g-3", time="2026-11-30T11:59:59.000Z"),
    )
    scratch.scan()
    scraped(scratch.path, NOON)
    found = parsed(written(scratch.path))
    assert turns_of(found) == [millis(MORNING), NOON - JOIN_MS - 1]
    assert max(samples[-1][0] for samples in found.values()) == NOON - JOIN_MS - 1


def test_what_was_found_after_the_first_scrape_is_not_in_the_history(scratch: Home) -> None:
    """A root added later made the scraped counters rise: written too, it would count twice."""
    scratch.write(header("first"), gemini("g-1", time=MORNING))
    scratch.scan()
    scraped(scratch.path, NOON)
    calls = [("c-1", "read_file", "success")]
    late = gemini("g-2", time="2026-11-30T08:00:00.000Z", calls=calls)
    scratch.write(header("second"), late, name="session-b.jsonl")
    scratch.scan()
    found = parsed(written(scratch.path))
    assert turns_of(found) == [millis(MORNING)]
    assert named(found, "gemini_cli_sessions_total")[-1][1] == 1
    assert not [name for name, _ in found if name.startswith("gemini_cli_tool_calls")]
    whole = parsed(written(scratch.path, HistoryOptions(allow_overlap=True)))
    assert {series: samples[-1][1] for series, samples in whole.items()} == live(scratch)


def test_a_series_born_between_the_end_and_the_first_scrape_is_0_at_the_end(scratch: Home) -> None:
    scratch.write(gemini("g-1", time=MORNING))
    scratch.write(gemini("g-2", time="2026-11-30T11:58:00.000Z"), project="late")
    scratch.scan()
    scraped(scratch.path, NOON)
    found = parsed(written(scratch.path))
    assert named(found, "gemini_cli_turns_total", project="late") == [(NOON - JOIN_MS, 0)]


def test_an_end_after_the_first_scrape_needs_leave(scratch: Home) -> None:
    scratch.write(gemini("g-1", time=MORNING), gemini("g-2", time="2026-11-30T13:00:00.000Z"))
    scratch.scan()
    scraped(scratch.path, NOON)
    with pytest.raises(HistoryError, match=r"after 2026-11-30T11:55:00Z.*--allow-overlap"):
        written(scratch.path, HistoryOptions(end=NOON))
    found = parsed(written(scratch.path, HistoryOptions(end=NOON + 2 * HOUR, allow_overlap=True)))
    assert len(turns_of(found)) == 2


def test_a_range_starts_with_the_value_of_its_start(demo: Home, text: str) -> None:
    whole = parsed(text)
    times = sorted(time for samples in whole.values() for time, _ in samples)
    start, end = times[len(times) // 3], times[len(times) * 2 // 3] + 1
    for series, samples in parsed(written(demo.path, HistoryOptions({}, start, end))).items():
        assert all(start <= time <= end for time, _ in samples)
        if whole[series][0][0] < start:
            assert samples[0] == (start, at(whole[series], start))
        for moment in range(start, end, MINUTE * 7):
            assert at(samples, moment) == at(whole[series], moment)


def test_further_labels_are_on_every_series(demo: Home, text: str) -> None:
    labels = dict(map(parse_label, ["job=gemini cli", "instance= [::1]:9742", 'note=a "b" \\c']))
    found = parsed(written(demo.path, HistoryOptions(labels)))
    extra = {("job", "gemini cli"), ("instance", "[::1]:9742"), ("note", 'a "b" \\c')}
    assert {(name, given - extra) for name, given in found if extra <= given} == set(parsed(text))


def test_a_turn_that_got_its_price_later_was_unpriced_and_costs_at_its_own_time(
    scratch: Home,
) -> None:
    scratch.write(
        gemini("g-1", 100, 10, model="mystery", time=MORNING),
        gemini("g-2", 200, 10, model="mystery", time="2026-11-30T10:00:00.000Z"),
    )
    scratch.scan()
    price = PriceTier(Decimal(1), Decimal(2))
    scratch.book = PriceBook({"mystery": PriceOverride(price)})
    scratch.restart()
    scratch.write(gemini("g-3", 400, 10, model="mystery", time="2026-11-30T11:00:00.000Z"))
    scratch.scan()
    found = parsed(written(scratch.path))
    unpriced = named(found, "gemini_cli_unpriced_tokens_total")
    cost = named(found, "gemini_cli_cost_usd_total", kind="input")
    moments = [millis(MORNING) + hours * HOUR for hours in range(3)]
    assert [at(unpriced, moment) for moment in moments] == [110, 320, 320]
    assert [at(cost, moment) for moment in moments] == [0.0001, 0.0003, 0.0007]
    assert {series: samples[-1][1] for series, samples in found.items()} == live(scratch)


def test_a_price_that_came_after_the_first_scrape_is_not_in_the_history(scratch: Home) -> None:
    price = PriceTier(Decimal(1), Decimal(2))
    scratch.book = PriceBook({"mystery": PriceOverride(price, end=date(2026, 11, 30))})
    scratch.restart()
    scratch.write(
        gemini("g-1", 100, 10, model="mystery", time="2026-11-29T09:00:00.000Z"),
        gemini("g-2", 200, 10, model="mystery", time=MORNING),
        gemini("g-3", 300, 10, model="riddle", time=MORNING),
    )
    scratch.scan()
    scraped(scratch.path, NOON)
    dearer = PriceOverride(PriceTier(Decimal(3), Decimal(4)))
    scratch.book = PriceBook({"mystery": dearer, "riddle": dearer})
    scratch.restart()
    found = parsed(written(scratch.path))
    unpriced = named(found, "gemini_cli_unpriced_tokens_total", model="mystery")
    cost = named(found, "gemini_cli_cost_usd_total", kind="input", model="mystery")
    assert [at(unpriced, millis(MORNING) - HOUR), at(unpriced, NOON)] == [0, 210]
    assert [at(cost, millis(MORNING) - HOUR), at(cost, NOON)] == [0.0001, 0.0001]
    assert {dict(labels)["model"] for name, labels in found if "usd" in name} == {"mystery"}


def test_calls_of_a_reply_without_tokens_are_with_the_last_that_has_a_time(scratch: Home) -> None:
    def call(number: int, status: str) -> list[tuple[str, str, str]]:
        return [(f"c-{number}", "read_file", status)]

    scratch.write(
        gemini("g-1", time=MORNING, calls=call(1, "success")),
        gemini("g-2", time="2026-11-30T10:00:00.000Z", calls=call(2, "success")),
        gemini("g-3", None, time="2026-11-30T09:30:00.000Z", calls=call(3, "error")),
        gemini("g-4", time="2026-11-30T11:00:00.000Z"),
    )
    scratch.scan()
    found = parsed(written(scratch.path))
    calls = named(found, "gemini_cli_tool_calls_total")
    moments = [millis(MORNING), millis("2026-11-30T10:00:00+00:00")]
    assert [at(calls, moment) for moment in moments] == [1, 3]
    assert named(found, "gemini_cli_tool_errors_total")[-1][1] == 1
    scraped(scratch.path, NOON)
    calls = named(parsed(written(scratch.path)), "gemini_cli_tool_calls_total")
    assert calls[-1][1] == 2, "a scraper may have seen the third rise later"


def test_an_echo_counts_once_at_the_time_of_the_whole_reply(scratch: Home) -> None:
    scratch.write(gemini("g-1", 5_000, 5, tool=3, time=MORNING))
    scratch.scan()
    key, whole = b"\0" * 16, millis(MORNING) + 2_000
    with closing(sqlite3.connect(scratch.path)) as db:
        # As the ledger stores it when the first half was counted in an earlier transaction.
        db.execute(
            "INSERT INTO turn SELECT ?, session, project, model, ?, input, cached, 50,"
            " thoughts, 0, rate, role FROM turn",
            (key, whole),
        )
        db.execute(
            "UPDATE turn SET input = 0, output = 0, tool = 0, rate = 0, role = 2 WHERE id != ?",
            (key,),
        )
        db.execute("UPDATE prompt_total SET bucket = 5")
        db.execute("UPDATE usage_total SET output = 50, tool = 0")
        db.commit()
    scratch.restart()
    found = parsed(written(scratch.path))
    assert turns_of(found) == [whole]
    assert {series: samples[-1][1] for series, samples in found.items()} == live(scratch)


def test_projects_under_one_label_are_one_series(scratch: Home) -> None:
    scratch.write(gemini("g-1", time=MORNING), project="a")
    scratch.write(gemini("g-2", time=MORNING), project="b", name="session-b.jsonl")
    scratch.scan()
    scratch.rules = LabelRules(ProjectLabel.NONE)
    scratch.restart()
    found = parsed(written(scratch.path))
    assert named(found, "gemini_cli_turns_total")[-1] == (millis(MORNING), 2)
    check(found, scratch.path, "one label")


def test_a_turn_older_than_the_birth_of_its_series_comes_after_the_zero(scratch: Home) -> None:
    scratch.write(gemini("g-1", time=MORNING))
    scratch.scan()
    scratch.write(gemini("g-2", time="2026-11-30T08:00:00.000Z"))
    scratch.scan()
    assert named(parsed(written(scratch.path)), "gemini_cli_turns_total")[0] == (
        millis(MORNING) - HOUR - 1,
        0,
    )


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"labels": {"model": "x"}}, "have a label of that name"),
        ({"labels": {"le": "1"}}, "have a label of that name"),
        ({"labels": {"__name__": "x"}}, "a name has letters"),
        ({"labels": {"9lives": "x"}}, "a name has letters"),
        ({"labels": {"job": ""}}, "not one line of text"),
        ({"labels": {"job": "a\nb"}}, "not one line of text"),
        ({"labels": {"job": "\ud83d"}}, "not one line of text"),
        ({"start": 2, "end": 1}, "--start is not before --end"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(HistoryError, match=fault) as caught:
        HistoryOptions(**options)
    assert "\n" not in str(caught.value)


def test_a_label_without_a_value_is_refused() -> None:
    with pytest.raises(HistoryError, match="write NAME=VALUE"):
        parse_label("job")


def test_a_ledger_that_is_not_complete_is_refused(tmp_path: Path) -> None:
    with home(tmp_path) as scratch, pytest.raises(HistoryError, match="not hold all transcripts"):
        written(scratch.path)


def test_a_ledger_without_turns_is_refused(scratch: Home) -> None:
    scratch.scan()
    with pytest.raises(HistoryError, match="no turn in the ledger"):
        written(scratch.path)


def test_a_start_after_the_last_turn_is_refused(scratch: Home) -> None:
    scratch.write(gemini("g-1", time=MORNING))
    scratch.scan()
    with pytest.raises(HistoryError, match="nothing to write after 2026-11-30T09:00:00Z"):
        written(scratch.path, HistoryOptions(start=NOON))
