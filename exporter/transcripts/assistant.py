"""A second process that reads transcripts while the first one also fills the ledger.

It is started for a large scan only and ends with it. It gets paths and cursors and answers with
turns, tool calls and moved cursors; it knows no ledger. If it fails, the first process reads by
itself.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import msgspec

from ..ledger.model import Batch, ToolCall, Turn
from .conversation import Place
from .reader import Key, Reader, Reading, Source, spare_the_collector

logger = logging.getLogger(__name__)

AHEAD: Final = 3
"""Tasks that are given out before their answers are there."""

_LENGTH: Final = 4


class Task(msgspec.Struct, array_like=True):
    """One transcript to read to its end; see `Reader.read`."""

    source: Source
    place: Place
    now: int
    first_scan: bool


class Answer(msgspec.Struct, array_like=True):
    """What a transcript, or a part of a large one, gave.

    `error` holds errno and message where it could not be read.
    """

    key: Key
    turns: list[Turn]
    calls: list[ToolCall]
    reasons: dict[str, int]
    reading: Reading | None = None
    error: tuple[int, str] | None = None

    @property
    def last(self) -> bool:
        """Whether no other answer to the same task follows."""
        return self.reading is None or not self.reading.pending


class Assistant:
    """The second process as the first one sees it; one thread uses it."""

    def __init__(self) -> None:
        """Start the process; raises OSError if that is not possible."""
        home = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._tasks: dict[Key, Task] = {}
        self._answers: queue.Queue[Answer | None] = queue.Queue(AHEAD)
        self._thread = threading.Thread(target=self._receive, name="assistant", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether an answer will come."""
        return bool(self._tasks)

    @property
    def free(self) -> bool:
        """Whether another task can be given."""
        return len(self._tasks) < AHEAD and self._process.poll() is None

    def give(self, task: Task) -> bool:
        """Give a task away; False if it cannot be, for instance for a name that is not UTF-8."""
        try:
            frame = msgspec.msgpack.encode(task)
            _send(self._process.stdin, frame)
        except (UnicodeEncodeError, OSError):
            return False
        self._tasks[task.source.key] = task
        return True

    def answer(self, wait: bool) -> Answer | None:
        """Return the next answer; None if there is none yet or, having waited, none will come."""
        try:
            answer = self._answers.get(block=wait)
        except queue.Empty:
            return None
        if answer is not None and answer.last:
            del self._tasks[answer.key]
        elif (
            answer is not None and answer.reading is not None and answer.reading.cursor is not None
        ):
            task = self._tasks[answer.key]
            task.source = task.source._replace(known=answer.reading.cursor)
        return answer

    def unanswered(self) -> list[Source]:
        """Take back what the process has left undone, to be read by others."""
        sources = [task.source for task in self._tasks.values()]
        self._tasks.clear()
        if sources:
            logger.warning("the reading assistant ended early; going on without it")
        return sources

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        while self._thread.is_alive():
            with suppress(queue.Empty):  # it may be waiting for room
                self._answers.get_nowait()
            self._thread.join(0.01)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what was still in the buffer of a dead process's pipe
                pipe.close()

    def _receive(self) -> None:
        decoder = msgspec.msgpack.Decoder(Answer)
        while frame := _receive(self._process.stdout):
            self._answers.put(decoder.decode(frame))
        self._answers.put(None)


def main() -> None:
    """Answer tasks from standard input on standard output until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process decides when to end
    spare_the_collector()
    reader = Reader(max_open=1)
    decoder, encoder = msgspec.msgpack.Decoder(Task), msgspec.msgpack.Encoder()
    while frame := _receive(sys.stdin.buffer):
        task = decoder.decode(frame)
        key = task.source.key
        while True:
            batch, reasons = Batch(), Counter[str]()
            answer = Answer(key, batch.turns, batch.calls, reasons)
            try:
                answer.reading = reader.read(
                    task.source, task.place, task.now, task.first_scan, batch, reasons
                )
            except OSError as error:
                answer.error = (error.errno or 0, str(error))
            _send(sys.stdout.buffer, encoder.encode(answer))
            if answer.last:
                break
            assert answer.reading is not None
            assert answer.reading.cursor is not None
            task.source = task.source._replace(known=answer.reading.cursor)


def _send(pipe: IO[bytes] | None, frame: bytes) -> None:
    assert pipe is not None
    pipe.write(len(frame).to_bytes(_LENGTH, "big"))
    pipe.write(frame)
    pipe.flush()


def _receive(pipe: IO[bytes] | None) -> bytes:
    """Return the next frame, empty at the end of the pipe."""
    assert pipe is not None
    length = pipe.read(_LENGTH)
    return pipe.read(int.from_bytes(length, "big")) if len(length) == _LENGTH else b""


if __name__ == "__main__":
    main()
