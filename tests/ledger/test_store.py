"""The ledger: what is counted, what a restart finds, and what it refuses."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from exporter.ledger.errors import LedgerError, LedgerUnavailableError
from exporter.ledger.labels import CAPS, LabelRules, ProjectLabel
from exporter.ledger.model import (
    Batch,
    FileCursor,
    Project,
    Role,
    Status,
    TokenUsage,
    ToolCall,
    Turn,
    call_key,
    message_key,
)
from exporter.ledger.pricing import PriceBook, PriceOverride, PriceTier
from exporter.ledger.store import Ledger
from tests.support import BOOK, Clock

SHOP = Project("shop", "/home/ana/shop")
CLOCK = Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    opened = Ledger(path, BOOK, CLOCK)
    yield opened
    opened.close()


def turn(
    message: str,
    usage: TokenUsage | None = None,
    *,
    model: str = "gemini-2.5-flash",
    project: Project = SHOP,
    session: str = "s-1",
    role: Role = Role.MAIN,
    time: int = CLOCK.now,
    echo: str | None = None,
) -> Turn:
    return Turn(
        message_key(message),
        session,
        role,
        project,
        model,
        time,
        usage or TokenUsage(100, 50, 10, 5, 1),
        message_key(echo) if echo else None,
    )


def call(
    message: str, name: str = "read_file", status: Status = Status.SUCCESS, key: str = "c-1"
) -> ToolCall:
    return ToolCall(
        message_key(message), call_key(key), name, status, SHOP, "gemini-2.5-flash", CLOCK.now
    )


def reopened(
    ledger: Ledger, book: PriceBook = BOOK, show: ProjectLabel = ProjectLabel.SLUG
) -> Ledger:
    ledger.close()
    return Ledger(ledger.path, book, CLOCK, LabelRules(show))


def test_a_message_id_is_counted_once(ledger: Ledger) -> None:
    assert len(ledger.record(Batch(turns=[turn("a"), turn("a"), turn("b")]))) == 2
    assert len(ledger.record(Batch(turns=[turn("b", session="s-2"), turn("c")]))) == 1
    (total,) = ledger.snapshot().pairs.values()
    assert total.turns == 3
    assert total.tokens == TokenUsage(300, 150, 30, 15, 3)


def test_cost_is_tokens_times_rate_in_pico_usd(ledger: Ledger) -> None:
    ledger.record(Batch(turns=[turn("a")]))
    (total,) = ledger.snapshot().pairs.values()
    assert total.cost == (100 * 300_000, 50 * 30_000, 10 * 2_500_000, 5 * 2_500_000, 1 * 300_000)
    assert total.savings == 50 * (300_000 - 30_000)


def test_a_restart_continues_every_total(ledger: Ledger) -> None:
    batch = Batch(
        turns=[turn("a"), turn("b", model="auto"), turn("c", session="s-2")],
        calls=[call("a"), call("a", status=Status.ERROR, key="c-2")],
    )
    ledger.record(batch)
    before = ledger.snapshot()
    again = reopened(ledger)
    after = again.snapshot()
    assert (after.pairs, after.tools, after.prompts) == (before.pairs, before.tools, before.prompts)
    assert (after.activity, after.prices) == (before.activity, before.prices)
    assert (after.unpriced_turns, after.ledger_turns) == (before.unpriced_turns, 3)
    again.close()


def test_tool_calls_are_counted_once_and_may_fail_later(ledger: Ledger) -> None:
    ledger.record(Batch(turns=[turn("a")], calls=[call("a"), call("a")]))
    ledger.record(Batch(calls=[call("a", status=Status.CANCELLED), call("a")]))
    (total,) = ledger.snapshot().tools.values()
    assert (total.calls, total.errors, total.cancellations) == (1, 0, 1)


def test_an_unknown_model_is_unpriced_and_never_zero(ledger: Ledger) -> None:
    ledger.record(Batch(turns=[turn("a", model="gemini-9-made-up")]))
    snapshot = ledger.snapshot()
    total = snapshot.pairs["shop", "gemini-9-made-up"]
    assert total.cost is None
    assert total.unpriced_tokens == 166
    assert snapshot.unpriced_turns == {"gemini-9-made-up": 1}
    assert snapshot.prices == {}


def test_a_free_model_costs_zero_and_is_priced(ledger: Ledger) -> None:
    ledger.record(Batch(turns=[turn("a", model="gemma-4-31b-it")]))
    snapshot = ledger.snapshot()
    assert snapshot.pairs["shop", "gemma-4-31b-it"].cost == (0, 0, 0, 0, 0)
    assert snapshot.unpriced_turns == {"gemma-4-31b-it": 0}


def test_an_unpriced_turn_gets_its_price_when_the_settings_have_one(ledger: Ledger) -> None:
    ledger.record(Batch(turns=[turn("a", model="house"), turn("b")]))
    known = ledger.snapshot().pairs["shop", "gemini-2.5-flash"]
    own = PriceOverride(price=PriceTier(Decimal(2), Decimal(4), Decimal(1)))
    for _ in range(2):  # the second start looks nothing up again
        ledger = reopened(ledger, PriceBook({"house": own}, Decimal(2)))
        snapshot = ledger.snapshot()
        total = snapshot.pairs["shop", "house"]
        assert total.cost == (400_000_000, 100_000_000, 80_000_000, 40_000_000, 4_000_000)
        assert total.unpriced_tokens == 166, "a counter does not fall"
        assert snapshot.unpriced_turns == {"house": 0, "gemini-2.5-flash": 0}
        assert snapshot.pairs["shop", "gemini-2.5-flash"] == known, "a turn keeps its rate"
        assert snapshot.prices["gemini-2.5-flash"].input == 600_000, "the price shown is today's"
    ledger.close()


def test_each_turn_keeps_its_tier(ledger: Ledger) -> None:
    small, large = TokenUsage(200_000, 0, 0, 0, 0), TokenUsage(200_000, 0, 0, 0, 1)
    ledger.record(Batch(turns=[turn("a", small, model="gemini-2.5-pro")]))
    ledger.record(Batch(turns=[turn("b", large, model="gemini-2.5-pro")]))
    snapshot = ledger.snapshot()
    total = snapshot.pairs["shop", "gemini-2.5-pro"]
    assert total.cost == (200_000 * (1_250_000 + 2_500_000), 0, 0, 0, 2_500_000)
    assert snapshot.prices["gemini-2.5-pro"].input == 1_250_000, "the base tier is shown"
    assert snapshot.prompts["gemini-2.5-pro"].buckets == (0, 0, 0, 0, 0, 0, 1, 1, 0, 0)


@pytest.mark.parametrize("together", [True, False], ids=["one batch", "two batches"])
def test_an_echo_and_its_final_usage_are_one_reply(ledger: Ledger, together: bool) -> None:
    first, final = TokenUsage(100, 50, 1, 0, 0), TokenUsage(100, 50, 10, 5, 0)
    turns = [turn("a", first), turn("b", final, echo="a")]
    if together:
        assert len(ledger.record(Batch(turns=turns))) == 1
    else:
        assert [len(ledger.record(Batch(turns=[one]))) for one in turns] == [1, 0]
    for again in (turns, turns[::-1]):
        ledger.record(Batch(turns=again))
    snapshot = ledger.snapshot()
    (total,) = snapshot.pairs.values()
    assert (total.turns, total.tokens) == (1, final)
    assert sum(snapshot.prompts["gemini-2.5-flash"].buckets) == 1
    assert snapshot.activity["shop"].sessions == 1


def test_an_echo_that_was_seen_alone_never_makes_a_counter_fall(ledger: Ledger) -> None:
    """Another model, a later cache report: the sums that others may have seen do not shrink."""
    ledger.record(Batch(turns=[turn("a", TokenUsage(100, 0, 1, 0, 0))]))
    before = ledger.snapshot()
    final = TokenUsage(40, 60, 10, 5, 0)
    ledger.record(Batch(turns=[turn("b", final, model="gemini-2.5-pro", echo="a")]))
    after = ledger.snapshot()
    assert list(after.pairs) == list(before.pairs)
    assert after.pairs["shop", "gemini-2.5-flash"].tokens == TokenUsage(100, 0, 10, 5, 0)
    assert after.prompts == before.prompts
    again = reopened(ledger)
    assert again.snapshot().pairs == after.pairs
    again.close()


def test_an_echo_whose_first_part_was_never_counted_counts_by_itself(ledger: Ledger) -> None:
    assert len(ledger.record(Batch(turns=[turn("b", echo="a")]))) == 1


def test_a_session_counts_once_in_the_project_of_its_first_main_turn(ledger: Ledger) -> None:
    api = Project("api", "/home/ana/api")
    ledger.record(Batch(turns=[turn("a", role=Role.SUBAGENT)]))
    assert ledger.snapshot().activity["shop"].sessions == 0
    ledger.record(Batch(turns=[turn("b", project=api), turn("c"), turn("d", session="s-2")]))
    ledger.record(Batch(turns=[turn("a", session="copy")]))
    sessions = {name: activity.sessions for name, activity in ledger.snapshot().activity.items()}
    assert sessions == {"shop": 1, "api": 1}
    again = reopened(ledger)
    assert {n: a.sessions for n, a in again.snapshot().activity.items()} == sessions
    again.close()


def test_two_paths_with_one_slug_get_two_labels(ledger: Ledger) -> None:
    others = [Project("shop", "/home/bo/shop"), Project("shop", ""), Project("shop-1", SHOP.path)]
    ledger.record(Batch(turns=[turn("a")]))
    ledger.record(Batch(turns=[turn(str(i), project=p) for i, p in enumerate(others)]))
    labels = {project for project, _ in ledger.snapshot().pairs}
    assert labels == {"shop", "shop-e527", "shop-1"}
    by_path = reopened(ledger, show=ProjectLabel.PATH)
    labels = {project for project, _ in by_path.snapshot().pairs}
    assert labels == {"/home/ana/shop", "/home/bo/shop", "shop"}
    none = reopened(by_path, show=ProjectLabel.NONE)
    assert [(key, total.turns) for key, total in none.snapshot().pairs.items()] == [
        (("", "gemini-2.5-flash"), 4)
    ]
    none.close()


@pytest.mark.parametrize("kind", ["project", "model", "tool"])
def test_names_beyond_a_cap_become_other_and_are_counted(ledger: Ledger, kind: str) -> None:
    extra = 7
    names = [f"n-{i}" for i in range(CAPS[kind] + extra)]
    if kind == "tool":
        ledger.record(Batch(calls=[call(name, name) for name in names]))
        found = {tool for _, _, tool in ledger.snapshot().tools}
    elif kind == "model":
        ledger.record(Batch(turns=[turn(name, model=name) for name in names]))
        found = {model for _, model in ledger.snapshot().pairs}
    else:
        ledger.record(Batch(turns=[turn(name, project=Project(name)) for name in names]))
        found = {project for project, _ in ledger.snapshot().pairs}
    assert len(found) == CAPS[kind] + 1
    assert "other" in found
    assert ledger.overflow[kind] == extra


def test_hostile_names_are_stored_and_shown_clean(ledger: Ledger) -> None:
    evil = "a\ud83d\0b\nc\u2028" + "x" * 500
    ledger.record(
        Batch(
            turns=[turn("a\ud83d", model=evil, project=Project(evil, evil), session=evil)],
            calls=[call("a", evil, key=evil)],
        )
    )
    again = reopened(ledger)
    ((project, model),) = again.snapshot().pairs
    ((_, _, tool),) = again.snapshot().tools
    for label in (project, model, tool):
        assert label.startswith("a\ufffdbcxxx")
        assert len(label) == 128
    again.close()


def test_cursors_come_back_as_they_were_recorded(ledger: Ledger) -> None:
    cursor = FileCursor("/r\udcff", "tmp/\udcfe/x", 1, 2**63 - 1, 3, -1, 5, b"f", b"c")
    other = FileCursor("/r\udcff", "tmp/other")
    ledger.record(Batch(cursors={(c.root, c.path): c for c in (cursor, other)}))
    ledger.record(Batch(gone=[(other.root, other.path)]))
    again = reopened(ledger)
    assert list(again.cursors()) == [cursor]
    assert again.scanned_roots() == set()
    again.finish_scan([cursor.root])
    assert again.scanned_roots() == {cursor.root}
    again.close()


def test_the_first_scan_is_complete_once_and_for_all(ledger: Ledger) -> None:
    assert not ledger.complete
    ledger.finish_scan([])
    assert ledger.complete
    again = reopened(ledger)
    assert again.complete
    again.close()


def test_a_series_start_is_its_earliest_turn_until_the_first_scan_is_complete(
    ledger: Ledger, path: Path
) -> None:
    ledger.record(Batch(turns=[turn("a", time=CLOCK.now - 1000)]))
    ledger.record(Batch(turns=[turn("b", time=CLOCK.now - 9000)]))
    ledger.finish_scan([])
    ledger.record(Batch(turns=[turn("c", time=CLOCK.now - 99_000)]))
    born = sqlite3.connect(path).execute("SELECT DISTINCT born FROM series").fetchall()
    assert born == [(CLOCK.now - 9000,)]


def test_nothing_of_a_failed_transaction_stays(ledger: Ledger) -> None:
    ledger.record(Batch(turns=[turn("a")]))
    before = ledger.snapshot()
    broken = turn("c", model="new-model", project=Project("new"), session="new")
    broken.time = 2**70
    with pytest.raises(OverflowError):
        ledger.record(Batch(turns=[turn("b", model="x", project=Project("x")), broken]))
    assert ledger.snapshot() == before
    assert len(ledger.record(Batch(turns=[turn("b", model="x", project=Project("x"))]))) == 1
    assert set(ledger.snapshot().pairs) == {("shop", "gemini-2.5-flash"), ("x", "x")}


def test_a_full_disk_is_not_damage(ledger: Ledger) -> None:
    ledger.record(Batch(turns=[turn("a")]))
    db = ledger._db
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {pages}")
    many = Batch(turns=[turn(f"m-{i}") for i in range(2000)])
    with pytest.raises(LedgerUnavailableError, match="full"):
        ledger.record(many)
    assert ledger.snapshot().ledger_turns == 1
    db.execute("PRAGMA max_page_count = 100000")
    assert len(ledger.record(many)) == 2000


def test_the_files_are_readable_by_their_owner_only(ledger: Ledger, path: Path) -> None:
    ledger.record(Batch(turns=[turn("a")]))
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert {"ledger.db", "ledger.db-wal", "ledger.db.lock"} <= set(modes)
    assert all(mode & 0o077 == 0 for mode in modes.values()), modes
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_second_exporter_is_told_who_holds_the_ledger(path: Path) -> None:
    first = Ledger(path, BOOK, CLOCK, address="127.0.0.1:9742")
    with pytest.raises(LedgerError, match=rf"process {os.getpid()} serving 127.0.0.1:9742; stop"):
        Ledger(path, BOOK, CLOCK)
    first.close()
    Ledger(path, BOOK, CLOCK).close()


def test_a_newer_schema_is_refused(ledger: Ledger, path: Path) -> None:
    ledger.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
        db.commit()
    with pytest.raises(LedgerError, match="written by a newer release"):
        Ledger(path, BOOK, CLOCK)
    assert [file.name for file in path.parent.glob("*.damaged*")] == []


def test_a_place_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="choose another place with --ledger"):
        Ledger(tmp_path / "file" / "ledger.db", BOOK, CLOCK)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("5e551001-0000-4000-8000-000000000001", "5E551001-0000-4000-8000-000000000001", False),
        ("5e551001-0000-4000-8000-000000000001", "5e551001-0000-4000-8000-000000000002", False),
        ("x", "x", True),
        ("", " ", False),
    ],
)
def test_message_keys_are_equal_only_for_equal_ids(one: str, other: str, same: bool) -> None:
    assert (message_key(one) == message_key(other)) is same
    assert len(message_key(one)) == 16


def test_no_uuid_shares_its_key_with_a_hashed_id() -> None:
    uuid = "0123abcd-0000-4000-8000-00000000000f"
    assert message_key(uuid).hex() == uuid.replace("-", "")
    assert message_key("0123abcd-0000-f000-8000-00000000000f").hex()[12] == "f"
    assert message_key("import-1").hex()[12] == "f"
