"""Coverage-guided fuzzing of everything that reads bytes of a transcript.

    python tests/fuzz_records.py -max_total_time=60 [corpus folder]

It needs `pip install atheris`, and no test run collects it. The promises held: nothing raises, the
reasons are of the closed list, counts are within their bounds, and a read of a file goes on where
the one before it ended, however small the buffer is.
"""

from __future__ import annotations

import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

atheris = import_module("atheris")  # a tool without types, and not among the project's own
sys.path.insert(0, str(Path(__file__).parent.parent))

with atheris.instrument_imports(include=["exporter"]):
    from exporter.ledger.model import Batch, FileCursor, Project
    from exporter.transcripts.conversation import Place
    from exporter.transcripts.reader import Reader, Source
    from exporter.transcripts.records import (
        head_of,
        is_crowded,
        parse_document,
        parse_line,
        skippable,
        time_of,
        usage_of,
    )
    from exporter.transcripts.shapes import MAX_TOKENS, Parsed, Reason, Record
    from tests.support import dumps, gemini, header, user

NOW = 1_796_000_000_000
SEEDS = (
    gemini(calls=[("c-1", "read_file", "success")]),
    gemini("g-2", None),
    user(),
    header(),
    {"$set": {"messages": [user(), gemini()], "sessionId": "s"}},
    {"$set": {"lastUpdated": "2026-11-30T20:00:00.000Z"}},
    {"$rewindTo": "u-1"},
    {**header(), "messages": [user(), gemini("g-3", calls=[("c-2", "ls", "error")])]},
)


def check_record(record: Record) -> None:
    assert isinstance(record.id, str)
    assert time_of(record.timestamp) is None or isinstance(record.timestamp, str)
    if record.tokens is not None:
        usage, _ = usage_of(record.tokens)
        assert all(type(count) is int and 0 <= count <= MAX_TOKENS for count in usage)
    for call in record.tool_calls or ():
        assert isinstance(call.name, str)


def check(parsed: Parsed) -> None:
    assert parsed.record is None or parsed.header is None
    assert all(reason in Reason for reason in parsed.reasons)
    if parsed.record is not None:
        check_record(parsed.record)
    if parsed.header is not None:
        for message in parsed.header.messages or ():
            check_record(message)


PLACE = Place(Project("shop"), "s", "")


def fuzz_text(data: bytes) -> None:
    """Parse one text as a line and as a document, in the usual way and piece by piece."""
    for crowded in (False, True):
        check(parse_line(memoryview(data), crowded))
        check(parse_document(data, crowded))
    head_of(data, 0, len(data))
    is_crowded(data, 0, len(data))
    if skippable(data, 0, len(data)) is not None and data.count(b'type"') < 2 and b"\\" not in data:
        record = parse_line(data).record
        assert record is None or record.type != "gemini", "a key that comes twice aside"


def read(path: Path, reader: Reader, cursor: FileCursor) -> tuple[FileCursor, Batch]:
    batch, reasons = Batch(), Counter[str]()
    while True:
        source = Source(cursor.root, cursor.path, 0, cursor)
        reading = reader.read(source, PLACE, NOW, True, batch, reasons)
        assert reading.cursor is not None
        assert cursor.offset <= reading.cursor.offset <= reading.cursor.size
        cursor = reading.cursor
        if not reading.pending:
            break
    assert all(reason in set(Reason) for reason in reasons)
    return cursor, batch


def fuzz_file(path: Path, data: bytes, cut: int, buffer: int) -> None:
    """Read a file as it grows through a small buffer, and at once through a large one."""
    start = FileCursor(str(path.parent), path.name)
    cut = min(cut, len(data))
    path.write_bytes(data[:cut])
    small, large = Reader(buffer=buffer, max_line=1 << 16, budget=64), Reader()
    cursor, first = read(path, small, start)
    with path.open("ab") as file:
        file.write(data[cut:])
    cursor, second = read(path, small, cursor)
    end, whole = read(path, large, start)
    for reader in (small, large):
        reader.keep_only(())
    if path.suffix == ".jsonl":
        assert cursor.offset == end.offset == data.rfind(b"\n") + 1
        grown = {turn.id for batch in (first, second) for turn in batch.turns}
        assert grown <= {turn.id for turn in whole.turns}


def main() -> None:
    with TemporaryDirectory() as folder:
        paths = [Path(folder, f"session-a.{end}") for end in ("json", "jsonl")]

        def fuzz(data: bytes) -> None:
            """The first bytes say what is done with the others."""
            if len(data) < 4:
                return
            what, buffer, cut, text = data[0] % 4, data[1] + 1, data[2] * 4, data[3:]
            if what < 2:
                fuzz_text(text)
            else:
                fuzz_file(paths[what - 2], text, cut, buffer)

        corpus = Path(folder, "corpus")
        corpus.mkdir()
        lines = [dumps(seed) for seed in SEEDS]
        for number, line in enumerate([*lines, b"\n".join(lines) + b"\n"]):
            for what in range(4):
                (corpus / f"{what}-{number}").write_bytes(bytes([what, 40, 60]) + line + b"\n")
        atheris.Setup([*sys.argv, str(corpus)], fuzz)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
