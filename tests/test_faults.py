"""Faults around the exporter: each is said by a metric, and nothing is lost once it ends."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from exporter.ledger.errors import LedgerError, LedgerUnavailableError
from exporter.ledger.model import Turn
from exporter.ledger.store import Ledger
from exporter.transcripts import reader as reader_module
from exporter.transcripts.files import open_regular
from exporter.transcripts.lines import Lines
from tests.support import BOOK, OPEN_ERRORS, Home, gemini, header, home


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Home]:
    with home(tmp_path) as opened:
        opened.write(header(), gemini("g-1"))
        opened.scan()
        yield opened


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of that size; it needs root, as CI has."""
    folder.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
            capture_output=True,
            check=False,
        ).returncode
    ):
        pytest.skip("mounting a small disk is not allowed here: it needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Leave no byte free on a disk."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    return filler


def test_a_full_disk_keeps_turns_pending_until_there_is_space(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk", "2m") as disk,
        home(disk, root=tmp_path / "gemini") as scratch,
    ):
        scratch.write(header(), gemini("g-0"))
        scratch.scan()
        filler = fill(disk)
        scratch.write(*(gemini(f"g-{number}") for number in range(1, 5000)))
        with pytest.raises(LedgerUnavailableError, match="full"):
            scratch.scan()
        assert not scratch.stats.ledger_writable
        assert (scratch.stats.pending_turns, scratch.stats.ledger_errors) == (4999, 1)
        assert scratch.turns == 1, "what is shown is what is stored"
        filler.unlink()
        scratch.scan()
        assert scratch.turns == 5000
        assert scratch.stats.ledger_writable
        assert scratch.stats.pending_turns == 0
        assert not list(disk.glob("*.damaged*"))


def test_a_full_disk_at_the_start_is_not_damage(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        with home(disk, root=tmp_path / "gemini") as scratch:
            scratch.write(header(), gemini("g-1"))
            scratch.scan()
        filler = fill(disk)
        with pytest.raises((LedgerError, LedgerUnavailableError), match="cannot be"):
            Ledger(disk / "ledger.db", BOOK, scratch.clock)
        filler.unlink()
        with closing(Ledger(disk / "ledger.db", BOOK, scratch.clock)) as ledger:
            assert ledger.snapshot().ledger_turns == 1
        assert not list(disk.glob("*.damaged*"))


def test_the_loop_waits_for_a_ledger_that_cannot_be_written(
    scratch: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two I/O errors, then success: the turn is there, and nothing was read twice."""
    from exporter.transcripts import recording as module
    from exporter.transcripts.collector import Collector

    failures = [LedgerUnavailableError("disk I/O error"), LedgerUnavailableError("still")]
    record = Ledger.record
    seen = []

    def failing(ledger: Ledger, batch: object) -> list[Turn]:
        if failures:
            raise failures.pop(0)
        seen.append(scratch.stats.ledger_writable)
        return record(ledger, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(Ledger, "record", failing)
    monkeypatch.setattr(module, "_RETRY_SECONDS", (0.001, 0.002))
    patient = Collector(
        [str(scratch.root)], scratch.ledger, scratch.stats, scratch.clock, stop=threading.Event()
    )
    scratch.write(gemini("g-2"))
    with closing(patient):
        patient.scan()
    assert scratch.turns == 2
    assert seen == [False], "said while it lasted"
    assert (scratch.stats.ledger_writable, scratch.stats.ledger_errors) == (True, 2)


@pytest.mark.parametrize(
    ("code", "reason"),
    OPEN_ERRORS,
)
def test_one_files_error_does_not_stop_the_others_and_passes(
    scratch: Home, monkeypatch: pytest.MonkeyPatch, code: int, reason: str
) -> None:
    bad = scratch.write(header("bad"), gemini("g-2"), name="session-bad.jsonl")
    scratch.write(header("good"), gemini("g-3"), name="session-good.jsonl")

    def failing(path: str) -> tuple[int, os.stat_result]:
        if path == str(bad):
            raise OSError(code, os.strerror(code))
        return open_regular(path)

    monkeypatch.setattr(reader_module, "open_regular", failing)
    for _ in range(3):  # it is left alone for a second
        scratch.scan()
    assert scratch.turns == 2
    assert scratch.stats.file_errors[reason] == 1
    monkeypatch.undo()
    scratch.clock.now += 1001
    scratch.scan()
    assert scratch.turns == 3


def test_an_error_in_the_middle_of_a_file_loses_nothing(
    scratch: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch.write(*(gemini(f"g-{number}") for number in range(2, 100)))

    class Failing(Lines):
        def read(self, budget: int) -> int:
            super().read(200)
            raise OSError(errno.EIO, "half-way")

    monkeypatch.setattr(reader_module, "Lines", Failing)
    scratch.scan()
    assert scratch.stats.file_errors["io"] == 1
    monkeypatch.undo()
    scratch.clock.now += 1001
    scratch.scan()
    assert scratch.turns == 99


@pytest.mark.parametrize("how", ["removed", "moved", "unmounted"])
def test_a_root_that_goes_and_comes_back_changes_no_total(scratch: Home, how: str) -> None:
    away = scratch.root.with_name("away")
    if how == "removed":
        shutil.copytree(scratch.root, away)
        shutil.rmtree(scratch.root)
    else:
        scratch.root.rename(away)
        if how == "unmounted":
            scratch.root.mkdir()
    for _ in range(2):
        scratch.scan()
    assert scratch.turns == 1
    if how == "unmounted":
        scratch.root.rmdir()
    away.rename(scratch.root)
    scratch.write(gemini("g-2"))
    scratch.scan()
    assert scratch.turns == 2


def test_a_root_that_does_not_exist_is_waited_for_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with home(tmp_path) as scratch:
        for _ in range(3):
            scratch.scan()
        assert scratch.ledger.complete, "nothing to read is a complete scan"
        assert caplog.text.count("waiting for a folder that does not exist yet") == 1
        scratch.write(header(), gemini("g-1"))
        scratch.scan()
        assert scratch.turns == 1
        assert caplog.text.count("the folder is there now") == 1


@pytest.mark.parametrize("jump", [-86_400_000, 86_400_000], ids=["back a day", "ahead a day"])
def test_clock_jumps_lose_nothing_and_count_nothing_twice(scratch: Home, jump: int) -> None:
    scratch.clock.now += jump
    path = scratch.write(gemini("g-2"))
    scratch.collector.look([str(path)])
    scratch.scan()
    scratch.clock.now -= jump
    scratch.write(gemini("g-3"))
    scratch.scan()
    scratch.restart()
    scratch.scan()
    assert scratch.turns == 3
    assert scratch.skipped.keys() <= {"time_ahead"}
