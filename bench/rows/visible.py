"""How long a reply that was just written stays invisible on /metrics."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from math import ceil
from random import Random

from .. import homes
from ..process import CommandError
from ..subject import Subject
from ..table import Row
from ..writer import Writer

_FILES = 200
_REPLIES = 500
_RATE = 20.0
"""Replies a second: 200 sessions with a reply every ten seconds."""

_PATIENCE = 30.0


def rows(subject: Subject) -> Iterator[Row]:
    """Append to one of many live files, ask until the counter has moved, pause, and again.

    The time for asking, an exposition at least, is part of the result.
    """
    files = subject.scaled(_FILES, 2)
    home, truth = subject.copy(homes.many(files, min(12, files)))
    transcripts = homes.transcripts(home)
    for transcript in transcripts:
        os.utime(transcript)  # changed lately, so it is live
    writer, rng, delays = Writer(home, truth), Random(1), list[float]()
    with subject.serve(home, subject.ledger()) as server:
        subject.check(server, truth)
        for _ in range(subject.scaled(_REPLIES, 5)):
            time.sleep(rng.expovariate(_RATE))
            transcript = rng.choice(transcripts)
            written = time.perf_counter()
            series, value = writer.append(transcript)
            while server.value(series) != value:
                if time.perf_counter() > written + _PATIENCE:
                    raise CommandError(f"a reply does not appear: {series} {value}")
            delays.append(time.perf_counter() - written)
        subject.check(server, truth)
    delays.sort()
    half, most = (delays[ceil(len(delays) * share) - 1] * 1_000 for share in (0.5, 0.99))
    what = f"write to visible on /metrics, {files} live files"
    yield Row(f"{what}: p99", f"p50 {half:.1f} ms", "", most, 250, 50, "ms")
