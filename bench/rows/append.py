"""One line appended to a transcript of 256 MB while `serve` follows it."""

from __future__ import annotations

import time
from collections.abc import Iterator

from .. import homes
from ..subject import Subject
from ..table import Row
from ..writer import Writer

_APPENDS = 50
_PAUSE = 0.1
"""Seconds between two appends, so that each is read for itself."""

_READ = "gemini_cli_exporter_read_bytes_total"


def rows(subject: Subject) -> Iterator[Row]:
    """Bytes read and processor time for each of many appends; nothing is asked in between."""
    home, truth = subject.copy(homes.long(subject.scale))
    (transcript,) = homes.transcripts(home)
    writer, appends = Writer(home, truth), subject.scaled(_APPENDS, 3)
    with subject.serve(home, subject.ledger()) as server:
        subject.check(server, truth)
        before = server.value(_READ)
        cpu, characters = server.cpu, server.characters
        for _ in range(appends):
            writer.append(transcript)
            time.sleep(_PAUSE)
        cpu, characters = server.cpu - cpu, server.characters - characters
        read = server.value(_READ) - before
        subject.check(server, truth)
    line = writer.written / appends
    yield Row(
        "append to a 256 MB transcript: bytes read, against the line",
        f"{read / appends:,.0f} B, all files {characters / appends:,.0f} B",
        f"{line:,.0f} B",
        read / writer.written,
        1,
        1,
    )
    yield Row("append to a 256 MB transcript: CPU", value=cpu / appends * 1_000, goal=5, unit="ms")
