"""The loop: batches with their cursors, fairness, a ledger that cannot be written, waking up."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from exporter.ledger.errors import LedgerError, LedgerUnavailableError
from exporter.ledger.model import Batch, Turn
from exporter.ledger.stats import Stats
from exporter.transcripts import collector as module
from exporter.transcripts import inventory
from exporter.transcripts.changes import Changes, FolderKind
from exporter.transcripts.collector import Collector
from exporter.transcripts.files import ERROR_REASONS
from exporter.transcripts.reader import Reader, Reading, Source
from exporter.transcripts.shapes import Reason
from exporter.transcripts.watcher import Watcher
from tests.support import Home, dumps, gemini, header, home

Record = Callable[[Batch], int]


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Home]:
    with home(tmp_path) as opened:
        yield opened


def fill(scratch: Home, files: int = 10, turns: int = 3) -> None:
    """Write transcripts whose replies all differ."""
    for file in range(files):
        replies = [gemini(f"g-{file}-{turn}", 100 + file) for turn in range(turns)]
        scratch.write(header(f"s-{file}"), *replies, name=f"session-{file}.jsonl")


class Crash(BaseException):
    """The end of the process, at a moment of the test's choice."""


def crash_at(scratch: Home, monkeypatch: pytest.MonkeyPatch, number: int) -> list[Batch]:
    """Let the process die instead of one commit; return the batches that were to be written."""
    real, batches = scratch.ledger.record, list[Batch]()

    def record(batch: Batch) -> list[Turn]:
        batches.append(batch)
        if len(batches) == number:
            raise Crash
        return real(batch)

    monkeypatch.setattr(scratch.ledger, "record", record)
    return batches


# Batches


@pytest.mark.parametrize("crash", [0, 2, 4])
def test_a_very_large_document_is_committed_in_parts_and_counts_once(
    scratch: Home, monkeypatch: pytest.MonkeyPatch, crash: int
) -> None:
    monkeypatch.setattr(module, "BATCH_ROWS", 4)
    monkeypatch.setattr(module, "_LARGE_BATCH", 10)
    replies = [gemini(f"g-{n}", 100 + n, calls=[("c", "ls", "success")]) for n in range(20)]
    path = scratch.write(dumps({**header(), "messages": replies}), name="session-a.json")
    os.utime(path, (1_700_000_000, 1_700_000_000))
    batches = crash_at(scratch, monkeypatch, crash)
    if crash:
        with pytest.raises(Crash):
            scratch.scan()
        scratch.restart()
    snapshot = scratch.scan()
    assert all(len(batch.turns) + len(batch.calls) <= 10 for batch in batches)
    assert [len(batch.cursors) for batch in batches[:4]] == [0, 0, 0, 0][: crash or 4]
    assert scratch.turns == 20
    assert [total.calls for total in snapshot.tools.values()] == [20]


def test_a_crash_between_reading_and_committing_loses_nothing(
    scratch: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(scratch)
    crash_at(scratch, monkeypatch, 1)
    with pytest.raises(Crash):
        scratch.collector.scan()
    scratch.restart()
    assert scratch.turns == 0
    assert list(scratch.ledger.cursors()) == []
    assert not scratch.ledger.complete
    scratch.scan()
    assert scratch.turns == 30
    assert scratch.ledger.complete


def test_a_crash_later_keeps_the_batches_before_it_with_their_cursors(
    scratch: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH_ROWS", 8)
    fill(scratch)
    crash_at(scratch, monkeypatch, 3)
    with pytest.raises(Crash):
        scratch.collector.scan()
    scratch.restart()
    cursors = list(scratch.ledger.cursors())
    assert 0 < len(cursors) < 10
    assert scratch.turns == 3 * len(cursors)
    rest = sum(path.stat().st_size for path in scratch.chats().iterdir())
    rest -= sum(cursor.size for cursor in cursors)
    scratch.scan()
    assert scratch.turns == 30
    assert scratch.stats.read_bytes == rest


def test_a_long_scan_is_committed_in_several_batches(
    scratch: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH_ROWS", 8)
    fill(scratch)
    batches = crash_at(scratch, monkeypatch, 0)
    scratch.scan()
    assert [len(batch.turns) for batch in batches] == [6, 6, 6, 6, 6]
    assert [len(batch.cursors) for batch in batches] == [2, 2, 2, 2, 2]


def test_a_look_without_anything_new_writes_nothing(
    scratch: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(scratch)
    scratch.scan()
    batches = crash_at(scratch, monkeypatch, 1)
    scratch.scan()
    scratch.collector.look([str(path) for path in scratch.chats().iterdir()])
    assert batches == []


def test_only_named_files_are_looked_at(scratch: Home) -> None:
    fill(scratch, files=2)
    scratch.scan()
    path = scratch.write(gemini("new-0"), name="session-0.jsonl")
    scratch.write(gemini("new-1"), name="session-1.jsonl")
    scratch.collector.look([str(path)])
    assert scratch.turns == 7
    scratch.scan()
    assert scratch.turns == 8


# Fairness and progress


class Noting(Reader):
    """A reader that notes which files it reads."""

    def __init__(self, **limits: int) -> None:
        super().__init__(**limits)
        self.names: list[str] = []
        self.pending: list[int] = []
        self.stats: Stats | None = None

    def read(self, source: Source, *args: Any) -> Reading:
        self.names.append(os.path.basename(source.path).removesuffix(".jsonl"))
        if self.stats is not None:
            self.pending.append(self.stats.pending_bytes)
        return super().read(source, *args)


@pytest.fixture
def noted(tmp_path: Path) -> Iterator[tuple[Home, Noting]]:
    reader = Noting(buffer=1024, budget=2048)
    with home(tmp_path, reader=reader) as opened:
        reader.stats = opened.stats
        yield opened, reader


def test_a_busy_file_does_not_starve_the_others(noted: tuple[Home, Noting]) -> None:
    scratch, reader = noted
    scratch.write(*(gemini(f"a-{turn}") for turn in range(60)), name="session-a.jsonl")
    scratch.write(gemini("b"), name="session-b.jsonl")
    scratch.write(gemini("c"), name="session-c.jsonl")
    scratch.scan()
    assert scratch.turns == 62
    assert set(reader.names[:3]) == {"session-a", "session-b", "session-c"}
    assert reader.names[3:] == ["session-a"] * (len(reader.names) - 3)
    assert len(reader.names) > 5


def test_pending_bytes_fall_to_zero(noted: tuple[Home, Noting]) -> None:
    scratch, reader = noted
    path = scratch.write(*(gemini(f"a-{turn}") for turn in range(60)))
    scratch.scan()
    assert reader.pending == sorted(reader.pending, reverse=True)
    assert reader.pending[0] == path.stat().st_size
    assert scratch.stats.pending_bytes == 0
    scratch.write(b'{"id":"torn')
    scratch.scan()
    assert scratch.stats.pending_bytes == 0, "a torn line is not pending"


def test_progress_grows_to_the_whole(scratch: Home) -> None:
    fill(scratch)
    steps: list[tuple[int, int]] = []
    collector = Collector(
        [str(scratch.root)],
        scratch.ledger,
        scratch.stats,
        scratch.clock,
        reader=Reader(buffer=256, budget=256),
        progress=lambda done, total: steps.append((done, total)),
    )
    collector.scan()
    collector.close()
    total = sum(path.stat().st_size for path in scratch.chats().iterdir())
    assert steps == sorted(steps)
    assert steps[-1] == (total, total)
    assert len(steps) > 10


def test_the_lag_is_that_of_turns_since_the_start(scratch: Home) -> None:
    started = scratch.clock.now
    scratch.clock.now = started + 3_000
    at = ("2026-11-30T20:59:59.999Z", "2026-11-30T21:00:02.600Z", "2026-11-30T21:00:03.900Z")
    scratch.write(*(gemini(f"g-{number}", time=time) for number, time in enumerate(at)))
    scratch.scan()
    assert sum(scratch.stats.lag_buckets) == 2, "history has no lag"
    assert scratch.stats.lag_sum == pytest.approx(0.4), "and a time ahead of the clock none either"


# The very first scan


def test_the_first_scan_is_complete_when_all_is_read(
    scratch: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH_ROWS", 1)
    fill(scratch, files=3)
    real, complete = scratch.ledger.record, list[bool]()

    def record(batch: Batch) -> list[Turn]:
        complete.append(scratch.ledger.complete)
        return real(batch)

    monkeypatch.setattr(scratch.ledger, "record", record)
    scratch.scan()
    assert complete == [False, False, False]
    assert scratch.ledger.complete
    assert scratch.ledger.scanned_roots() == {str(scratch.root)}
    assert (scratch.stats.scans, scratch.stats.last_scan) == (1, scratch.clock.now / 1000)


def test_a_scan_that_is_stopped_is_not_complete_and_keeps_what_it_has(scratch: Home) -> None:
    fill(scratch)
    stop = threading.Event()
    collector = Collector(
        [str(scratch.root)],
        scratch.ledger,
        scratch.stats,
        scratch.clock,
        stop=stop,
        progress=lambda done, total: stop.set() if done > total / 3 else None,
    )
    collector.scan()
    collector.close()
    assert scratch.turns == 12
    assert not scratch.ledger.complete
    assert scratch.stats.scans == 0


def test_a_missing_root_is_told_once_and_when_it_is_there(
    scratch: Home, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    scratch.scan()
    scratch.scan()
    scratch.write(gemini())
    scratch.scan()
    scratch.scan()
    told = [record.message for record in caplog.records if "folder" in record.message]
    assert told == ["waiting for a folder that does not exist yet", "the folder is there now"]


# A ledger that cannot be written


class Patience(threading.Event):
    """A stop event that never comes, and that notes how long it was waited for it."""

    def __init__(self, stats: Stats, stops_after: int = 1_000) -> None:
        super().__init__()
        self.waits: list[float] = []
        self.seen: list[tuple[bool, int, int]] = []
        self._stats = stats
        self._stops_after = stops_after

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        stats = self._stats
        self.waits.append(timeout)
        self.seen.append((stats.ledger_writable, stats.ledger_errors, stats.pending_turns))
        if len(self.waits) >= self._stops_after:
            self.set()
        return self.is_set()


def fail(
    scratch: Home, monkeypatch: pytest.MonkeyPatch, method: str, times: int, error: Exception
) -> None:
    """Let a method of the ledger fail so many times before it works again."""
    real, left = getattr(scratch.ledger, method), [times]

    def failing(*args: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise error
        return real(*args)

    monkeypatch.setattr(scratch.ledger, method, failing)


def patient(scratch: Home, stop: threading.Event | None) -> Collector:
    return Collector([str(scratch.root)], scratch.ledger, scratch.stats, scratch.clock, stop=stop)


FULL = LedgerUnavailableError("the ledger cannot be written: database or disk is full")


def test_a_full_disk_is_waited_for_and_nothing_is_lost(
    scratch: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    fill(scratch)
    fail(scratch, monkeypatch, "record", 2, FULL)
    stop = Patience(scratch.stats)
    collector = patient(scratch, stop)
    collector.scan()
    assert stop.waits == [1, 2]
    assert stop.seen == [(False, 1, 30), (False, 2, 30)]
    stats = scratch.stats
    assert (stats.ledger_writable, stats.ledger_errors, stats.pending_turns) == (True, 2, 0)
    assert scratch.turns == 30
    assert len(list(scratch.ledger.cursors())) == 10
    told = [record.message for record in caplog.records]
    assert told == ["turns stay pending", "the ledger can be written again"]
    collector.close()


def test_the_wait_for_a_ledger_grows_to_half_a_minute(
    scratch: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(scratch, files=1)
    fail(scratch, monkeypatch, "record", 8, FULL)
    stop = Patience(scratch.stats)
    collector = patient(scratch, stop)
    collector.scan()
    assert stop.waits == [1, 2, 4, 8, 16, 30, 30, 30]
    collector.close()


def test_the_end_of_the_first_scan_is_waited_for_too(
    scratch: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(scratch, monkeypatch, "finish_scan", 2, FULL)
    stop = Patience(scratch.stats)
    patient(scratch, stop).scan()
    assert len(stop.waits) == 2
    assert scratch.ledger.complete


def test_a_stop_ends_the_wait_and_the_turns_are_read_again(
    scratch: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(scratch)
    fail(scratch, monkeypatch, "record", 99, FULL)
    collector = patient(scratch, Patience(scratch.stats, stops_after=3))
    with pytest.raises(LedgerUnavailableError):
        collector.scan()
    collector.close()
    assert scratch.stats.pending_turns == 30
    scratch.restart()
    scratch.scan()
    assert scratch.turns == 30


def test_without_a_stop_nothing_is_waited_for_and_the_next_scan_goes_on(
    scratch: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(scratch)
    fail(scratch, monkeypatch, "record", 1, FULL)
    with pytest.raises(LedgerUnavailableError):
        scratch.collector.scan()
    scratch.write(gemini("new"), name="session-0.jsonl")
    scratch.scan()
    assert scratch.turns == 31
    assert scratch.stats.ledger_writable


def test_a_damaged_ledger_is_not_waited_for(scratch: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(scratch)
    fail(scratch, monkeypatch, "record", 1, LedgerError("damaged"))
    stop = Patience(scratch.stats)
    collector = patient(scratch, stop)
    with pytest.raises(LedgerError):
        collector.scan()
    assert stop.waits == []
    collector.close()


# The loop


class Fake:
    """A watcher whose changes are those of the script."""

    def __init__(self) -> None:
        self.mode = "events"
        self.unwatched = frozenset[str]()
        self.restarts = 0
        self.changes = Changes()
        self.syncs: list[dict[str, FolderKind]] = []
        self.on_sync: Callable[[], None] = lambda: None

    def sync(self, folders: Mapping[str, FolderKind]) -> None:
        self.syncs.append(dict(folders))
        self.on_sync()

    def take(self) -> Changes:
        changes, self.changes = self.changes, Changes()
        return changes


Step = Callable[[], None]


class Script(threading.Event):
    """The loop's wake event: each wait notes its timeout and does the next step of the script.

    A step that is None lets the timeout pass. When there are no more, the loop is stopped.
    """

    def __init__(self, stop: threading.Event, steps: list[Step | None]) -> None:
        super().__init__()
        self.waits: list[float] = []
        self.now = 0.0
        """Seconds, as `monotonic` tells them."""
        self._stop = stop
        self._steps = iter(steps)

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(round(timeout, 3))
        try:
            step = next(self._steps)
        except StopIteration:
            self._stop.set()
            return True
        if step is None:
            self.now += timeout
            return False
        step()
        return True


class Loop:
    """A collector's loop that runs through a script."""

    def __init__(self, scratch: Home, monkeypatch: pytest.MonkeyPatch) -> None:
        self.watcher = Fake()
        self.stats = scratch.stats
        self.waits: list[float] = []
        self._scratch = scratch
        self._monkeypatch = monkeypatch

    def run(self, *steps: Step | None, rescan: float = 30.0) -> None:
        stop = threading.Event()
        script = Script(stop, list(steps))
        self._monkeypatch.setattr(module, "monotonic", lambda: script.now)
        collector = patient(self._scratch, stop)
        collector.run(cast("Watcher", self.watcher), script, rescan)
        collector.close()
        self.waits = script.waits

    def tells(self, *files: Path, folders: bool = False, everything: bool = False) -> None:
        """Let the watcher have something to give."""
        some = frozenset({str(self._scratch.root / "tmp")}) if folders else frozenset[str]()
        self.watcher.changes = Changes(frozenset(map(str, files)), some, everything)


@pytest.fixture
def loop(scratch: Home, monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(scratch, monkeypatch)


def quiet(*paths: Path) -> None:
    """Let files be old enough that they are only looked at when an event or a scan says so."""
    for path in paths:
        os.utime(path, (1_700_000_000, 1_700_000_000 + path.stat().st_size))


def test_the_loop_begins_with_a_scan(scratch: Home, loop: Loop) -> None:
    fill(scratch)
    loop.run()
    assert scratch.turns == 30
    assert loop.stats.scans == 1
    assert len(loop.waits) == 1


def test_events_of_files_are_looked_at_and_nothing_else(scratch: Home, loop: Loop) -> None:
    a = scratch.write(gemini("a-1"), name="session-a.jsonl")
    b = scratch.write(gemini("b-1"), name="session-b.jsonl")
    quiet(a, b)
    seen: list[int] = []

    def write() -> None:
        for path in (a, b):
            scratch.write(gemini(f"{path.name}-2"), name=path.name)
            quiet(path)
        loop.tells(a)

    loop.run(write, lambda: seen.append(scratch.turns))
    assert seen == [3]
    assert loop.stats.scans == 1


@pytest.mark.parametrize("what", ["folders", "everything"])
def test_a_changed_folder_or_a_lost_event_means_a_scan(
    scratch: Home, loop: Loop, what: str
) -> None:
    def write() -> None:
        scratch.write(gemini(), project="new")
        loop.tells(**{what: True})

    loop.run(write)
    assert scratch.turns == 1
    assert loop.stats.scans == 2


def test_a_scan_is_due_when_no_event_came(scratch: Home, loop: Loop) -> None:
    def write() -> None:
        quiet(scratch.write(gemini()))

    loop.run(write, None, None, rescan=30)
    assert loop.waits[:2] == [30, 30]
    assert loop.stats.scans == 3
    assert scratch.turns == 1


@pytest.mark.parametrize(
    ("mode", "unwatched", "rescan", "wait"),
    [
        ("events", False, 30.0, 30.0),
        ("events", True, 30.0, 5.0),
        ("poll", False, 30.0, 5.0),
        ("poll", False, 2.0, 2.0),
    ],
)
def test_the_time_between_two_scans(
    loop: Loop, mode: str, unwatched: bool, rescan: float, wait: float
) -> None:
    loop.watcher.mode = mode
    loop.watcher.unwatched = frozenset({"x"} if unwatched else ())
    loop.run(None, rescan=rescan)
    assert loop.waits == [wait, wait]
    assert loop.stats.scans == 2


def test_a_slow_scan_makes_the_next_one_later(
    scratch: Home, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that looking at very many files stays a small share of a core."""
    loop.run(rescan=5)
    times = iter(range(1_000))
    stop = threading.Event()
    script = Script(stop, [])
    monkeypatch.setattr(module, "monotonic", lambda: float(next(times)))
    patient(scratch, stop).run(cast("Watcher", loop.watcher), script, 5.0)
    assert script.waits[0] > 290


def test_files_that_changed_lately_are_looked_at_every_second(scratch: Home, loop: Loop) -> None:
    """An event may be lost, or never come, as on a network mount."""
    path = scratch.write(gemini("g-1"))
    now = scratch.clock.now / 1000
    os.utime(path, (now, now))
    seen: list[int] = []

    def write() -> None:
        scratch.write(gemini("g-2"))
        os.utime(path, (now, now + 1))

    def later() -> None:
        seen.append(scratch.turns)
        scratch.clock.now += 700_000

    loop.run(write, None, later, None)
    assert seen == [2]
    assert loop.waits[:3] == [1, 1, 1]
    assert loop.waits[3] == 29, "a second has passed, and nothing is live any more"
    assert loop.stats.scans == 2


def test_a_document_just_written_is_read_again_a_second_later(scratch: Home, loop: Loop) -> None:
    path = scratch.chats() / "session-a.json"
    path.write_bytes(b'{"messages": [')
    written = scratch.clock.now * 1_000_000
    os.utime(path, ns=(written, written))

    def later() -> None:
        scratch.clock.now += 10_000

    loop.run(None, later, None)
    assert loop.waits[0] == 1
    assert scratch.skipped == {"bad_json": 1}
    assert loop.stats.read_bytes >= 3 * path.stat().st_size


def test_folders_are_watched_before_their_files_are_listed(scratch: Home, loop: Loop) -> None:
    """What is made between the two would be noticed by neither."""

    def on_sync() -> None:
        if scratch.chats() and not list(scratch.chats().iterdir()):
            scratch.write(gemini())

    scratch.chats()
    loop.watcher.on_sync = on_sync
    loop.run()
    assert scratch.turns == 1
    kinds = loop.watcher.syncs[0]
    assert kinds[str(scratch.chats())] is FolderKind.FILES
    assert kinds[str(scratch.root)] is FolderKind.PARENT
    assert kinds[str(scratch.root / "tmp" / "shop")] is FolderKind.PARENT


def test_a_folder_made_while_the_others_get_their_watches_is_not_missed(
    scratch: Home, loop: Loop
) -> None:
    scratch.chats()

    def on_sync() -> None:
        if len(loop.watcher.syncs) == 1:
            scratch.write(gemini(), project="new")

    loop.watcher.on_sync = on_sync
    loop.run()
    assert scratch.turns == 1
    assert str(scratch.chats("new")) in loop.watcher.syncs[-1]


def test_with_more_folders_than_are_watched_all_are_looked_at_regularly(
    scratch: Home, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet(scratch.write(gemini()))
    monkeypatch.setattr(inventory, "WATCHED_MAX", 3)
    monkeypatch.setattr(module, "POLL_SECONDS", 2.0)
    loop.run(None, lambda: None)
    assert loop.waits[-1] == 2.0


def test_the_state_of_the_watcher_is_shown(loop: Loop) -> None:
    def dies() -> None:
        loop.watcher.mode, loop.watcher.restarts = "poll", 3

    loop.run(lambda: None, dies)
    assert (loop.stats.watcher_mode, loop.stats.watcher_restarts) == ("poll", 3)


def test_after_a_stop_nothing_more_is_read(scratch: Home, loop: Loop) -> None:
    path = scratch.write(gemini("g-1"))
    stop = threading.Event()

    def leave() -> None:
        scratch.write(gemini("g-2"))
        loop.tells(path, everything=True)
        stop.set()

    collector = patient(scratch, stop)
    collector.run(cast("Watcher", loop.watcher), Script(stop, [leave]), 30.0)
    collector.close()
    assert scratch.turns == 1


def test_errors_of_files_do_not_end_the_loop(
    scratch: Home, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*args: Any) -> Reading:
        raise OSError(5, "Input/output error")

    fill(scratch, files=3)
    monkeypatch.setattr(Reader, "read", read)
    loop.run(None)
    assert loop.stats.scans == 2
    assert loop.stats.file_errors["io"] >= 3


def test_reasons_and_errors_are_shown_before_anything_has_happened(scratch: Home) -> None:
    assert set(scratch.stats.skipped) == set(Reason)
    assert set(scratch.stats.file_errors) == set(ERROR_REASONS)
