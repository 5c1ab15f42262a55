"""A second process reads with us: the counts are the same, whatever becomes of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from exporter.ledger.model import Project
from exporter.ledger.stats import Stats
from exporter.ledger.store import Ledger
from exporter.transcripts import collector as module
from exporter.transcripts.assistant import Answer, Assistant, Task
from exporter.transcripts.collector import Collector
from exporter.transcripts.conversation import Place
from exporter.transcripts.files import ERROR_REASONS
from exporter.transcripts.inventory import Inventory
from exporter.transcripts.reader import Source
from exporter.transcripts.shapes import Reason
from tests.real import RealSet
from tests.support import BOOK, Clock, gemini, header, home

CLOCK = Clock()

Read = Callable[..., tuple[Ledger, Stats]]


@pytest.fixture
def read(tmp_path: Path) -> Iterator[Read]:
    """Read roots into a ledger of their own, with or without a second process."""
    ledgers: list[Ledger] = []

    def reading(roots: list[str], assist_from: int = 0) -> tuple[Ledger, Stats]:
        ledger = Ledger(tmp_path / f"{len(ledgers)}.db", BOOK, CLOCK)
        ledgers.append(ledger)
        stats = Stats(0, Reason, ERROR_REASONS)
        with closing(Collector(roots, ledger, stats, CLOCK, assist_from=assist_from)) as collector:
            collector.scan()
        return ledger, stats

    yield reading
    for ledger in ledgers:
        ledger.close()


def test_two_processes_count_as_one_does(real_sets: dict[str, RealSet], read: Read) -> None:
    roots = [str(real.gemini) for real in real_sets.values()]
    alone, stats = read(roots, 1 << 40)
    together, both = read(roots)
    one, two = alone.snapshot(), together.snapshot()
    assert (one.pairs, one.tools, one.prompts) == (two.pairs, two.tools, two.prompts)
    assert one.ledger_turns == 1273
    assert stats.read_bytes == both.read_bytes
    assert both.pending_bytes == 0
    key = lambda cursor: (cursor.root, cursor.path)  # noqa: E731
    assert sorted(alone.cursors(), key=key) == sorted(together.cursors(), key=key)


def test_the_work_goes_on_when_the_other_process_dies(
    real_sets: dict[str, RealSet], read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mortal(Assistant):
        """Is killed when it has answered three times."""

        answers = 0

        def answer(self, wait: bool) -> Answer | None:
            answer = super().answer(wait)
            self.answers += answer is not None
            if self.answers == 3:
                self._process.kill()
                self._process.wait()
            return answer

    monkeypatch.setattr(module, "Assistant", Mortal)
    ledger, stats = read([str(real.gemini) for real in real_sets.values()])
    assert ledger.snapshot().ledger_turns == 1273
    assert stats.pending_bytes == 0


def test_without_a_second_process_the_first_reads_alone(
    real_sets: dict[str, RealSet],
    read: Read,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(module, "Assistant", fail)
    ledger, _ = read([str(real_sets["0.61.0-long"].gemini)])
    assert ledger.snapshot().ledger_turns == 211
    assert "reading alone" in caplog.text


def test_names_that_are_not_utf_8_and_files_that_are_gone_are_no_trouble(
    tmp_path: Path, read: Read
) -> None:
    with home(tmp_path) as scratch:
        for number in range(9):
            scratch.write(header(), gemini(f"g-{number}"), name=f"session-{number}.jsonl")
        odd = os.fsencode(scratch.chats()) + b"/session-\xff.jsonl"
        os.rename(os.fsencode(scratch.chats()) + b"/session-4.jsonl", odd)
        (scratch.chats() / "session-5.jsonl").write_bytes(b"not json\n")
        ledger, stats = read([str(scratch.root)])
    assert ledger.snapshot().ledger_turns == 8
    assert stats.skipped["bad_json"] == 1


def test_what_cannot_be_read_is_refused_by_its_reason(
    tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe takes the place of a transcript between the listing and the reading."""
    with home(tmp_path) as scratch:
        paths = [scratch.write(header(), name=f"session-{number}.jsonl") for number in range(4)]
        changed = Inventory.changed

        def swapping(inventory: Inventory, now: float) -> list[Source]:
            sources = changed(inventory, now)
            for path in paths:
                path.unlink()
                os.mkfifo(path)
            return sources

        monkeypatch.setattr(Inventory, "changed", swapping)
        _, stats = read([str(scratch.root)])
    assert stats.file_errors["not_regular"] == 4


def test_hash_folders_wait_for_the_names_that_the_other_process_finds(
    tmp_path: Path, read: Read
) -> None:
    digest = "ab" * 32
    with home(tmp_path) as scratch:
        for number in range(20):
            scratch.write(
                header(), gemini(f"h-{number}"), name=f"session-{number}.jsonl", project=digest
            )
            scratch.write(header(), gemini(f"g-{number}"), name=f"session-{number}.jsonl")
        scratch.write(
            {**header("last"), "projectHash": digest}, gemini("z"), name="session-z.jsonl"
        )
        ledger, _ = read([str(scratch.root)])
    assert set(ledger.snapshot().activity) == {"shop"}


def test_what_a_dead_process_has_not_answered_is_taken_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "session-a.jsonl"
    os.mkfifo(path)  # it waits for nothing: the process is dead before it could answer
    source = Source(str(tmp_path), path.name, 0)
    with closing(Assistant()) as assistant:
        assistant._process.send_signal(signal.SIGSTOP)
        assert assistant.give(Task(source, Place(Project("shop"), "s", ""), 0, False))
        assert assistant.busy
        assistant._process.kill()
        assert assistant.answer(wait=True) is None
        assert assistant.unanswered() == [source]
        assert not assistant.busy
    assert "going on without it" in caplog.text


def test_the_other_process_ends_with_the_scan(tmp_path: Path) -> None:
    assistant = Assistant()
    assert assistant.free
    assert not assistant.busy
    assert assistant.answer(wait=False) is None
    assistant.close()
    assert assistant._process.poll() is not None
    assert not assistant.free
