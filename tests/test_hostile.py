"""Hostile homes: nothing crashes, hangs or fills the memory, and what is refused is counted.

GEMINI_CLI_EXPORTER_TEST_FLOOD sets how many projects, models and tools there are; 100000 take a
minute or two.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from exporter.ledger import names
from exporter.ledger.labels import CAPS
from exporter.ledger.model import Batch, FileCursor, Project, message_key
from exporter.outputs.prometheus import OPENMETRICS, TEXT, Exposition
from exporter.transcripts.conversation import Place
from exporter.transcripts.reader import LOOK_AGAIN, Reader, Reading, Source
from exporter.transcripts.shapes import Reason
from tests import hostile
from tests.hostile import HUGE, MB, Flood, Huge
from tests.program import Metrics, once
from tests.real import RealSet
from tests.support import BOOK, Home, counted, dumps, gemini, header, home, user
from tests.test_replays import messages_of

MOST_MEMORY = 150 * MB

FLOOD = int(os.environ.get("GEMINI_CLI_EXPORTER_TEST_FLOOD", "6000"))

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")

SETS = {"json": "0.33.2-subagent_twice", "jsonl": "0.61.0-subagent_resume"}
"""A set of each format with many messages of all kinds."""


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Home]:
    with home(tmp_path) as opened:
        yield opened


class Cold:
    """Reads one file from its start, as often as one likes, without a ledger."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = Reader()

    def read(self, age: float = 10) -> tuple[Batch, Counter[str], Reading]:
        """Read the file `age` seconds after its last change."""
        batch, reasons = Batch([], [], {}, []), Counter[str]()
        cursor = FileCursor(str(self.path.parent), self.path.name)
        status = self.path.stat()
        source = Source(cursor.root, cursor.path, status.st_size, cursor)
        place = Place(Project("shop"), "a", "")
        now = round((status.st_mtime + age) * 1000)
        reading = self._reader.read(source, place, now, False, batch, reasons)
        self._reader.keep_only(())
        return batch, reasons, reading


def largest(real: RealSet, suffix: str) -> Path:
    """Return the largest transcript of a set."""
    paths = real.gemini.glob(f"tmp/*/chats/**/*{suffix}")
    return max(paths, key=lambda path: path.stat().st_size)


def usage_in(name: str, data: bytes) -> dict[bytes, tuple[int, int]]:
    """Return prompt and output tokens by the ledger's keys, read by the plain rules."""
    return {
        message_key(message["id"]): (message["tokens"]["input"], message["tokens"]["output"])
        for message in messages_of(name, data)
        if message.get("tokens")
    }


def usage_of(batch: Batch) -> dict[bytes, tuple[int, int]]:
    return {
        turn.id: (turn.usage.input + turn.usage.cached, turn.usage.output) for turn in batch.turns
    }


# Cut off and damaged


def test_lines_that_are_cut_off_at_any_byte_cost_only_the_last(
    real_sets: dict[str, RealSet], tmp_path: Path
) -> None:
    original = largest(real_sets[SETS["jsonl"]], ".jsonl")
    data = original.read_bytes()
    cold, lines = Cold(tmp_path / original.name), data.count(b"\n") + 1
    cold.path.write_bytes(data)
    for size in range(len(data), -1, -1):
        if data.count(b"\n", 0, size) < lines:
            lines -= 1
            expected = usage_in(original.name, data[:size])
        os.truncate(cold.path, size)
        batch, reasons, _ = cold.read()
        assert usage_of(batch) == expected
        assert reasons == {}


def test_a_document_that_is_cut_off_at_any_byte_gives_nothing_and_is_read_again(
    real_sets: dict[str, RealSet], tmp_path: Path
) -> None:
    """Once it has been so for a while, that is counted too."""
    original = largest(real_sets[SETS["json"]], ".json")
    data = original.read_bytes()
    cold = Cold(tmp_path / original.name)
    cold.path.write_bytes(data)
    assert usage_of(cold.read()[0]) == usage_in(original.name, data)
    for size in range(len(data) - 1, 0, -1):
        os.truncate(cold.path, size)
        batch, reasons, reading = cold.read(age=1)
        assert (batch.turns, reasons) == ([], {})
        assert reading.cursor is not None
        assert reading.cursor.mtime == LOOK_AGAIN
        assert cold.read(age=10)[1] == {Reason.BAD_JSON: 1}


def test_a_changed_byte_costs_no_other_line(real_sets: dict[str, RealSet], tmp_path: Path) -> None:
    rng = Random(8)
    original = largest(real_sets[SETS["jsonl"]], ".jsonl")
    lines = original.read_bytes().splitlines(keepends=True)
    cold, truth = Cold(tmp_path / original.name), usage_in(original.name, b"".join(lines))
    for _ in range(1_500):
        number = rng.randrange(len(lines))
        line = bytearray(lines[number])
        line[rng.randrange(len(line) - 1)] = rng.choice(b'\x00"{}[],:\\e-0\xff\xc3 ')
        cold.path.write_bytes(b"".join([*lines[:number], line, *lines[number + 1 :]]))
        touched = usage_in(original.name, lines[number])
        found = usage_of(cold.read()[0])
        assert truth.items() - found.items() <= touched.items()


def test_random_bytes_are_refused_and_counted(scratch: Home) -> None:
    rng = Random(9)
    for number in range(200):
        suffix = rng.choice([".json", ".jsonl"])
        data = rng.randbytes(1 << rng.randrange(16)) + b"\n"
        path = scratch.write(data, name=f"session-{number}{suffix}")
        os.utime(path, (0, 0))
    scratch.write(gemini())
    scratch.scan()
    assert scratch.turns == 1
    assert scratch.skipped.keys() <= {Reason.BAD_JSON, Reason.BAD_SHAPE}
    assert scratch.skipped[Reason.BAD_JSON] > 200


def test_a_surprise_in_any_field_costs_no_other_message(scratch: Home) -> None:
    """Hundreds of odd values, in each field of each kind of line and document."""
    reply = gemini("odd", calls=[("c-1", "ls", "success")])
    del reply["tokens"]["total"]
    document = {**header(), "messages": [user(), reply]}
    good = 0
    for shape in (reply, header(), {"$set": {"sessionId": "s", "messages": [reply]}}, document):
        for line in hostile.variants(shape):
            scratch.write(line, b"\n", gemini(f"good-{good}"))
            good += 1
    for number, text in enumerate(hostile.variants(document)):
        path = scratch.write(text, name=f"session-{number}.json", project="documents")
        os.utime(path, (0, 0))
    snapshot = scratch.scan()
    ids = {row[0] for row in scratch.ledger._db.execute("SELECT id FROM turn")}
    assert ids >= {message_key(f"good-{number}") for number in range(good)}
    for total in snapshot.pairs.values():
        assert min(total.tokens) >= 0
    for content_type in (TEXT, OPENMETRICS):
        text = Exposition(scratch.ledger, scratch.stats, scratch.clock).render(content_type)
        Metrics(text.decode().replace("# EOF\n", ""))


@pytest.mark.parametrize("era", SETS)
def test_half_an_emoji_in_every_text_costs_nothing(
    era: str, real_sets: dict[str, RealSet], tmp_path: Path
) -> None:
    """Node writes lone surrogates where it cuts a text inside an emoji."""
    real, changed = real_sets[SETS[era]], 0
    root = real.copy_to(tmp_path / "gemini")
    for path in root.glob("tmp/*/chats/**/*.json*"):
        data = hostile.with_surrogates(path.read_bytes())
        changed += data.count(b"\\ud83d")
        path.write_bytes(data)
    assert changed > 20
    with home(tmp_path) as scratch:
        assert counted(scratch.scan()) == real.expected()
        assert scratch.skipped == {}


def test_of_a_key_that_comes_twice_the_last_counts(scratch: Home) -> None:
    head, tail = dumps(gemini("b", 7)).split(b',"type"')
    scratch.write(head.replace(b'{"id"', b'{"id":"a","id"'), b',"type":"user","type"', tail, b"\n")
    scratch.scan()
    assert scratch.turns == 1
    (total,) = scratch.ledger.snapshot().pairs.values()
    assert total.tokens.input == 7


# Files that are none


THINGS: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (hostile.make_pipe, "not_regular"),
    "device": (hostile.make_device, "not_regular"),
    "socket": (hostile.make_socket, "not_regular"),
    "link": (hostile.make_link, "link"),
    "loop": (hostile.make_loop, "link"),
    "dangling link": (hostile.make_dangling, "link"),
}


@pytest.mark.skipif(sys.platform != "linux", reason="makes things that only Linux has")
@pytest.mark.parametrize("name", ["session-x.jsonl", "session-x.json"])
@pytest.mark.parametrize(("make", "reason"), THINGS.values(), ids=THINGS)
def test_what_is_no_file_is_never_opened_and_counted_once(
    scratch: Home, make: Callable[[Path], None], reason: str, name: str
) -> None:
    path = scratch.chats() / name
    try:
        make(path)
    except OSError as error:
        pytest.skip(f"cannot be made here: {error}")
    scratch.write(gemini())
    for _ in range(3):
        scratch.scan()
        scratch.collector.look([str(path)])
    assert scratch.turns == 1
    assert {key: count for key, count in scratch.stats.file_errors.items() if count} == {reason: 1}


def test_folders_named_as_transcripts_hurt_nobody(scratch: Home) -> None:
    for name in ("session-x.jsonl", "session-y.json", "parent/x.jsonl"):
        (scratch.chats() / name).mkdir(parents=True)
    (scratch.root / "projects.json").mkdir()
    (scratch.root / "tmp" / "shop" / ".project_root").mkdir()
    scratch.write(gemini())
    scratch.scan()
    assert scratch.turns == 1
    errors = {reason: count for reason, count in scratch.stats.file_errors.items() if count}
    assert errors == {"not_regular": 2}, "what should name the projects"


def test_folders_that_are_links_are_not_followed(scratch: Home, tmp_path: Path) -> None:
    outside = tmp_path / "outside" / "chats"
    outside.mkdir(parents=True)
    (outside / "session-o.jsonl").write_bytes(dumps(gemini("outside")) + b"\n")
    scratch.write(gemini())
    tmp = scratch.root / "tmp"
    (tmp / "linked").symlink_to(outside.parent)
    (tmp / "loop").symlink_to(tmp)
    (tmp / "half").mkdir()
    (tmp / "half" / "chats").symlink_to(outside)
    (scratch.chats() / "parent").symlink_to(outside)
    scratch.scan()
    assert scratch.turns == 1


def test_a_file_with_two_names_counts_once(scratch: Home, tmp_path: Path) -> None:
    path = scratch.write(gemini())
    path.with_name("session-b.jsonl").hardlink_to(path)
    outside = tmp_path / "outside.jsonl"
    outside.hardlink_to(path)
    scratch.scan()
    with outside.open("ab") as file:
        file.write(dumps(gemini("g-2")) + b"\n")
    scratch.scan()
    assert scratch.turns == 2


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_names_that_are_not_text_are_read_like_others(scratch: Home) -> None:
    names = [b"\xff\xfe", b"a\nb", b"\x1b[31m", b"\xed\xa0\x80", b"'\"\\{}", b" ", b"x" * 255]
    tmp = os.path.join(os.fsencode(scratch.root), b"tmp")
    for number, name in enumerate(names):
        chats = os.path.join(tmp, name, b"chats")
        os.makedirs(os.path.join(chats, b"\xff"))
        Path(os.fsdecode(os.path.join(tmp, name, b".project_root"))).write_bytes(b"/home/" + name)
        for place in (b"session-\xff\n.jsonl", b"\xff/\xfe.json\n.jsonl"):
            line = dumps(gemini(f"{number} {place!r}")) + b"\n"
            Path(os.fsdecode(os.path.join(chats, place))).write_bytes(line)
    scratch.scan()
    scratch.restart()
    scratch.scan()
    assert scratch.turns == 2 * len(names)
    assert scratch.stats.read_bytes == 0
    text = Exposition(scratch.ledger, scratch.stats, scratch.clock).render().decode()
    projects = Metrics(text).by_label("gemini_cli_turns_total", "project")
    assert sum(projects.values()) == 2 * len(names)
    assert all(re.fullmatch(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,128}", name) for name in projects)


# Written while they are read


def test_lines_that_grow_while_they_are_read_are_all_counted_once(scratch: Home) -> None:
    lines = [dumps(gemini(f"g-{number}")) + b"\n" for number in range(3_000)]
    path = scratch.chats() / "session-a.jsonl"

    def write() -> None:
        rng, rest = Random(10), memoryview(b"".join(lines))
        with path.open("ab", buffering=0) as file:
            while rest:
                rest = rest[file.write(rest[: rng.randrange(1, 4_000)]) :]

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        scratch.scan()
    writer.join()
    scratch.scan()
    assert scratch.turns == len(lines)
    assert scratch.skipped == {}


# Huge ones, through the whole program


@linux
@pytest.mark.parametrize("huge", HUGE, ids=lambda huge: huge.name)
def test_memory_stays_small_whatever_is_in_a_transcript(huge: Huge, tmp_path: Path) -> None:
    chats = tmp_path / "gemini" / "tmp" / "shop" / "chats"
    chats.mkdir(parents=True)
    huge.write(chats / f"session-a{huge.suffix}")
    os.utime(chats / f"session-a{huge.suffix}", (1_796_000_000, 1_796_000_000))
    (chats / "session-b.jsonl").write_bytes(dumps(gemini("other")) + b"\n")
    run = once(tmp_path, tmp_path / "gemini")
    shutil.rmtree(chats)
    metrics = run.metrics
    assert metrics.value("gemini_cli_turns_total") == huge.turns + 1
    skipped = metrics.by_label("gemini_cli_exporter_records_skipped_total", "reason")
    assert skipped == huge.reasons
    assert run.peak <= MOST_MEMORY


def with_model(name: str) -> Callable[[int], dict[str, Any]]:
    return lambda n: gemini(f"g-{n}", n, model=f"{name}-{n}")


def with_tool(name: str) -> Callable[[int], dict[str, Any]]:
    return lambda n: gemini(f"g-{n}", n, calls=[("c", f"{name}-{n}", "success")])


FLOODS = {
    "models": Flood("model", with_model("model")),
    "models with a price": Flood("model", with_model("gemini-3.6-flash")),
    "tools": Flood("tool", with_tool("tool")),
    "tools in a document": Flood("tool", with_tool("tool"), document=True),
    "projects": Flood("project", lambda n: gemini(f"g-{n}", n), folders=True),
}


@linux
@pytest.mark.timeout(60 + FLOOD // 500)
@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_flood_of_names_ends_at_the_cap_and_memory_stays_small(
    flood: Flood, tmp_path: Path
) -> None:
    root = tmp_path / "gemini"
    flood.write(root, FLOOD)
    run = once(tmp_path, root, 30 + FLOOD / 1_000)
    shutil.rmtree(root)
    metrics = run.metrics
    assert metrics.value("gemini_cli_turns_total") == FLOOD
    beyond = FLOOD - CAPS[flood.label]
    name = "gemini_cli_exporter_label_overflow_total"
    assert metrics.by_label(name, "label") == {flood.label: beyond}
    turns = "gemini_cli_tool_calls_total" if flood.label == "tool" else "gemini_cli_turns_total"
    counts = metrics.by_label(turns, flood.label)
    assert counts.pop("other") == beyond
    assert [*counts.values()] == [1] * CAPS[flood.label]
    assert run.peak <= MOST_MEMORY


def test_projects_beyond_those_that_a_ledger_tells_apart_are_one(
    scratch: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "_PROJECTS_MAX", 3)
    for number in range(6):
        scratch.write(gemini(f"g-{number}"), project=f"shop-{number}")
    for _ in range(2):
        projects = Counter({key[0]: row.turns for key, row in scratch.scan().pairs.items()})
        assert projects == {"shop-0": 1, "shop-1": 1, "shop-2": 1, "other": 3}
        assert scratch.turns == 6
        scratch.restart()
    scratch.write(gemini("g-6"), project="shop-5")
    assert Counter({key[0]: row.turns for key, row in scratch.scan().pairs.items()})["other"] == 4
    assert scratch.ledger.overflow["project"] == 1


def test_models_with_one_published_price_share_its_rates() -> None:
    now = 1_796_000_000_000
    rates = {BOOK.rate(f"gemini-3.6-flash-{number}", now, 10) for number in range(100)}
    assert [rate and rate.model for rate in rates] == ["gemini-3.6-flash"]
