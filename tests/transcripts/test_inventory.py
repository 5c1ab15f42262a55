"""Which transcripts are found, noticed as changed, left alone, and forgotten."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from exporter.ledger.model import FileCursor, Project
from exporter.ledger.stats import Stats
from exporter.ledger.store import Ledger
from exporter.transcripts import inventory as module
from exporter.transcripts.changes import FolderKind
from exporter.transcripts.collector import Collector
from exporter.transcripts.conversation import Place
from exporter.transcripts.files import ERROR_REASONS, identity
from exporter.transcripts.inventory import Inventory
from exporter.transcripts.reader import Source
from exporter.transcripts.shapes import Reason
from tests.support import BOOK, Clock, Home, audited, dumps, gemini, header, home

SHOP = "/home/ana/shop"
HASH = sha256(SHOP.encode()).hexdigest()
NOW = 1_000_000.0


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Home]:
    with home(tmp_path) as opened:
        yield opened


class Store:
    """An inventory of some roots, with the cursors that a ledger would give back."""

    def __init__(self, *roots: Path) -> None:
        self.roots = [str(root) for root in roots]
        self.stats = Stats(NOW, Reason, ERROR_REASONS)
        self.inventory = Inventory(self.roots, [], set(), self.stats)

    def changed(self, now: float = NOW) -> list[Source]:
        self.inventory.find_folders()
        return self.inventory.changed(now)

    def paths(self, now: float = NOW) -> list[str]:
        """Return what has changed, relative to its root's `tmp`."""
        return sorted(source.below.removeprefix("tmp/") for source in self.changed(now))

    def places(self) -> list[Place]:
        """Return what the paths of all that has changed tell."""
        keys = (source.key for source in self.changed())
        return [self.inventory.place(key) for key in keys]

    def settle(self, now: float = NOW) -> None:
        """Take everything that has changed as read."""
        for source in self.changed(now):
            status = os.lstat(source.path)
            place = source.key
            size, mtime = status.st_size, status.st_mtime_ns
            cursor = FileCursor(*place, *identity(status), size, mtime, size)
            self.inventory.settle(cursor)


def key_of(source: Source) -> tuple[str, str]:
    return source.key


def touch(root: Path, *paths: str) -> None:
    for path in paths:
        file = root / "tmp" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


# What is found


def test_a_source_tells_project_session_and_parent(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "shop/chats/session-2026-01-20T09-15-7c1d0a2b.jsonl",
        "shop/chats/5e551001-0000/a1b2c3.jsonl.unreadable-17",
        f"{HASH}/chats/session-2026-01-20T09-15-7c1d0a2b.json",
    )
    (tmp_path / "tmp/shop/.project_root").write_text(SHOP)
    project = Project("shop", SHOP, tmp_path.name)
    assert Store(tmp_path).places() == [
        Place(project, "7c1d0a2b", ""),
        Place(project, "a1b2c3", "5e551001-0000"),
        Place(project, "7c1d0a2b", ""),
    ]


def test_slug_folders_come_before_hash_folders(tmp_path: Path) -> None:
    touch(tmp_path, "zoo/chats/session-a.json", f"{'0' * 64}/chats/session-a.json")
    found = [source.below for source in Store(tmp_path).changed()]
    assert found == ["tmp/zoo/chats/session-a.json", f"tmp/{'0' * 64}/chats/session-a.json"]


def test_files_are_counted_by_root_and_missing_roots_are_there_with_none(tmp_path: Path) -> None:
    touch(tmp_path / "one", "shop/chats/session-a.json", "shop/chats/x/b.jsonl", "shop/logs.json")
    touch(tmp_path / "two", "shop/chats/session-a.json")
    store = Store(tmp_path / "one", tmp_path / "two", tmp_path / "three")
    store.changed()
    assert list(store.stats.files.values()) == [2, 1, 0]
    assert store.inventory.present_roots() == store.roots[:2]
    assert store.stats.file_errors.total() == 0


def test_folders_and_their_parents_are_known_for_watching(tmp_path: Path) -> None:
    touch(tmp_path, "shop/chats/x/b.jsonl", "blog/logs.json")
    store = Store(tmp_path)
    store.changed()
    top = tmp_path / "tmp"
    files = {str(top / "shop/chats"), str(top / "shop/chats/x")}
    parents = {str(tmp_path), str(top), str(top / "shop"), str(top / "blog")}
    kinds = dict.fromkeys(parents, FolderKind.PARENT) | dict.fromkeys(files, FolderKind.FILES)
    assert store.inventory.kinds(polled=()) == kinds
    assert store.inventory.kinds(polled=[str(tmp_path)]) == {}


def test_a_registry_that_comes_later_names_hash_folders(tmp_path: Path) -> None:
    touch(tmp_path, f"{HASH}/chats/session-a.json")
    store = Store(tmp_path)
    assert [place.project.slug for place in store.places()] == [f"unknown-{HASH[:8]}"]
    (tmp_path / "projects.json").write_bytes(dumps({"projects": {SHOP: "shop"}}))
    assert [place.project for place in store.places()] == [Project("shop", SHOP, tmp_path.name)]


def test_a_hash_seen_in_a_slug_folder_names_its_folder_in_the_first_scan_too(
    scratch: Home,
) -> None:
    for project in ("shop", HASH):
        scratch.write({**header(), "projectHash": HASH}, gemini(f"g-{project}"), project=project)
    assert {project for project, _ in scratch.scan().pairs} == {"shop"}


def test_hashes_seen_in_slug_folders_are_known_after_a_restart(scratch: Home) -> None:
    scratch.write({**header("s-1"), "projectHash": HASH}, gemini("g-1"))
    scratch.scan()
    scratch.restart()
    scratch.write(gemini("g-2"), project=HASH)
    assert {project for project, _ in scratch.scan().pairs} == {"shop"}


def test_linked_folders_are_not_entered(tmp_path: Path) -> None:
    touch(tmp_path / "outside", "shop/chats/session-a.json")
    touch(tmp_path / "root", "blog/chats/session-b.json")
    (tmp_path / "root/tmp/shop").symlink_to(tmp_path / "outside/tmp/shop")
    (tmp_path / "root/tmp/blog/chats/x").symlink_to(tmp_path / "outside/tmp/shop/chats")
    assert Store(tmp_path / "root").paths() == ["blog/chats/session-b.json"]


def test_names_that_are_not_utf8_are_found_read_and_known_again(scratch: Home) -> None:
    chats = os.fsencode(scratch.root) + b"/tmp/caf\xe9/chats"
    os.makedirs(chats + b"/\xff")
    for number, path in enumerate(
        (b"/session-\xfe.jsonl", b"/session-\xfe.json", b"/\xff/a.jsonl")
    ):
        reply = gemini(f"g-{number}")
        with open(chats + path, "wb") as file:
            file.write(dumps({"messages": [reply]} if path.endswith(b"json") else reply) + b"\n")
    snapshot = scratch.scan()
    assert snapshot.ledger_turns == 3
    assert [project for project, _ in snapshot.pairs] == ["caf\ufffd"]
    scratch.restart()
    scratch.scan()
    assert scratch.stats.read_bytes == 0


# What has changed


def test_what_is_settled_is_not_given_again_until_it_changes(tmp_path: Path) -> None:
    touch(tmp_path, "shop/chats/session-a.jsonl", "shop/chats/session-b.jsonl")
    store = Store(tmp_path)
    store.settle()
    assert store.paths() == []
    path = tmp_path / "tmp/shop/chats/session-a.jsonl"
    with path.open("ab") as file:
        file.write(b"x")
    assert store.paths() == ["shop/chats/session-a.jsonl"]
    store.settle()
    os.utime(path, ns=(1, 1))
    assert store.paths() == ["shop/chats/session-a.jsonl"], "another time"
    store.settle()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(1, 1))
    other.replace(path)
    assert store.paths() == ["shop/chats/session-a.jsonl"], "another inode"


def test_of_more_folders_than_are_watched_the_first_ones_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "shop/chats/x/b.jsonl", "blog/chats/session-a.jsonl")
    store = Store(tmp_path)
    store.changed()
    every = store.inventory.kinds(polled=())
    assert not store.inventory.crowded
    monkeypatch.setattr(module, "WATCHED_MAX", len(every))
    assert store.inventory.kinds(polled=()) == every
    assert not store.inventory.crowded
    monkeypatch.setattr(module, "WATCHED_MAX", 3)
    assert [*store.inventory.kinds(polled=())] == [*every][:3]
    assert store.inventory.crowded


def test_only_the_transcripts_that_were_read_last_are_looked_at_every_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, *(f"shop/chats/session-{name}.jsonl" for name in "abc"))
    monkeypatch.setattr(module, "LIVE_MAX", 2)
    store = Store(tmp_path)
    sources = sorted(store.changed())
    for source in [*sources, sources[1]]:
        store.inventory.settle(FileCursor(*source.key, mtime=round(NOW * 1e9)))
    assert [*store.inventory.live(NOW)] == [sources[2].key, sources[1].key]


@pytest.mark.parametrize("name", ["projects.json", "tmp/shop/.project_root"])
def test_what_names_projects_and_cannot_be_read_is_counted_once(tmp_path: Path, name: str) -> None:
    touch(tmp_path, "shop/chats/session-a.jsonl")
    (tmp_path / name).mkdir()
    store = Store(tmp_path)
    for _ in range(3):
        assert store.places()[0].project == Project("shop", "", tmp_path.name)
    assert store.stats.file_errors == {**dict.fromkeys(ERROR_REASONS, 0), "not_regular": 1}


def test_named_files_are_given_only_if_they_are_transcripts_and_changed(tmp_path: Path) -> None:
    names = ["session-a.jsonl", "session-b.jsonl", "logs.json", "session-c.jsonl.bak", "x/y.jsonl"]
    touch(tmp_path, *(f"shop/chats/{name}" for name in names), "shop/session-d.jsonl")
    store = Store(tmp_path)
    store.settle()
    chats = tmp_path / "tmp/shop/chats"
    for path in [*(chats / name for name in names), chats.parent / "session-d.jsonl"]:
        path.write_bytes(b"new")
    (chats / "session-b.jsonl").unlink()
    elsewhere = tmp_path / "elsewhere" / "session-a.jsonl"
    asked = [
        *chats.rglob("*"),
        chats.parent / "session-d.jsonl",
        elsewhere,
        chats / "session-e.json",
    ]
    given = store.inventory.changed_among(map(str, asked), NOW)
    assert [source.below for source in given if os.path.exists(source.path)] == [
        "tmp/shop/chats/session-a.jsonl",
        "tmp/shop/chats/x/y.jsonl",
    ]


def test_an_unchanged_transcript_is_never_opened_again(scratch: Home) -> None:
    path = scratch.write(header(), gemini("g-1"))
    document = scratch.chats() / "session-b.json"
    document.write_bytes(dumps({**header(), "messages": [gemini("g-2")]}))
    os.utime(document, (1_700_000_000, 1_700_000_000))
    scratch.scan()
    for _ in range(3):
        with audited() as events:
            scratch.scan()
            scratch.collector.look([str(path), str(document)])
        assert [name for event, name in events if event == "open" and "/tmp/" in name] == []
        scratch.restart()


def test_a_changed_transcript_is_opened_alone(scratch: Home) -> None:
    for name in "abc":
        scratch.write(gemini(name), name=f"session-{name}.jsonl")
    scratch.scan()
    scratch.restart()
    path = scratch.write(gemini("d"), name="session-b.jsonl")
    with audited() as events:
        scratch.scan()
    opened = [name for event, name in events if event == "open" and name.endswith(".jsonl")]
    assert opened == [str(path)]


# What is left alone for a while


def test_the_wait_after_a_failure_doubles_up_to_five_minutes(tmp_path: Path) -> None:
    touch(tmp_path, "shop/chats/session-a.jsonl")
    store, now, waits = Store(tmp_path), NOW, list[float]()
    for _ in range(12):
        [source] = store.changed(now)
        store.inventory.refuse(key_of(source), OSError(errno.EIO, ""), now)
        low, high = 0.0, 1_000.0
        while high - low > 0.01:
            middle = (low + high) / 2
            low, high = (low, middle) if store.changed(now + middle) else (middle, high)
        waits.append(round(high))
        now += high
    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert store.stats.file_errors["io"] == 12


def test_a_file_that_waits_does_not_hold_up_the_others(tmp_path: Path) -> None:
    touch(tmp_path, "shop/chats/session-a.jsonl", "shop/chats/session-b.jsonl")
    store = Store(tmp_path)
    [a, b] = sorted(store.changed(), key=lambda source: source.path)
    store.inventory.refuse(key_of(a), PermissionError(errno.EACCES, ""), NOW)
    assert store.paths(NOW + 0.5) == ["shop/chats/session-b.jsonl"]
    given = store.inventory.changed_among([a.path, b.path], NOW + 0.5)
    assert [source.path for source in given] == [b.path]


@pytest.mark.parametrize("how", ["read", "gone"])
def test_the_wait_starts_anew_after_a_file_was(tmp_path: Path, how: str) -> None:
    touch(tmp_path, "shop/chats/session-a.jsonl")
    store, path = Store(tmp_path), tmp_path / "tmp/shop/chats/session-a.jsonl"
    for now in (NOW, NOW + 10, NOW + 20):
        [source] = store.changed(now)
        store.inventory.refuse(key_of(source), OSError(errno.EIO, ""), now)
    if how == "read":
        store.settle(NOW + 30)
    else:
        path.unlink()
        store.changed(NOW + 30)
    path.write_bytes(b"new")
    [source] = store.changed(NOW + 40)
    store.inventory.refuse(key_of(source), OSError(errno.EIO, ""), NOW + 40)
    assert store.paths(NOW + 41.1) == ["shop/chats/session-a.jsonl"]


def test_a_file_that_vanishes_before_it_is_opened_is_no_error(tmp_path: Path) -> None:
    touch(tmp_path, "shop/chats/session-a.jsonl")
    store = Store(tmp_path)
    [source] = store.changed()
    store.inventory.refuse(key_of(source), FileNotFoundError(errno.ENOENT, ""), NOW)
    assert store.stats.file_errors.total() == 0
    assert store.paths() == ["shop/chats/session-a.jsonl"]


# What goes and comes back


def test_deleted_transcripts_lose_their_cursors_and_may_come_back(scratch: Home) -> None:
    path = scratch.write(header(), gemini("g-1"))
    scratch.write(header(), gemini("g-2"), name="session-b.jsonl")
    scratch.scan()
    kept = path.read_bytes()
    path.unlink()
    scratch.scan()
    assert [cursor.path for cursor in scratch.ledger.cursors()] == [
        "tmp/shop/chats/session-b.jsonl"
    ]
    path.write_bytes(kept + dumps(gemini("g-3")) + b"\n")
    scratch.scan()
    assert len(list(scratch.ledger.cursors())) == 2
    assert scratch.turns == 3


def test_a_file_deleted_while_the_exporter_was_off_loses_its_cursor(scratch: Home) -> None:
    path = scratch.write(gemini())
    scratch.scan()
    scratch.close()
    path.unlink()
    scratch.start()
    scratch.scan()
    assert list(scratch.ledger.cursors()) == []
    assert scratch.turns == 1


def test_a_renamed_project_is_read_again_and_counts_nothing_twice(scratch: Home) -> None:
    scratch.write(gemini("g-1"))
    scratch.scan()
    (scratch.root / "tmp/shop").rename(scratch.root / "tmp/store")
    scratch.write(gemini("g-2"), project="store")
    snapshot = scratch.scan()
    assert {project: total.turns for (project, _), total in snapshot.pairs.items()} == {
        "shop": 1,
        "store": 1,
    }


def test_a_root_that_is_away_for_a_while_is_not_read_again(scratch: Home) -> None:
    """As a network mount or an encrypted home may be."""
    scratch.write(gemini("g-1"))
    scratch.scan()
    away = scratch.root.rename(scratch.root.with_name("away"))
    scratch.scan()
    assert scratch.stats.files == {str(scratch.root): 0}
    scratch.restart()
    scratch.scan()
    assert len(list(scratch.ledger.cursors())) == 1
    away.rename(scratch.root)
    scratch.scan()
    assert scratch.stats.read_bytes == 0
    assert scratch.turns == 1


def test_a_root_made_again_is_found_without_a_restart(scratch: Home) -> None:
    scratch.write(gemini("g-1"))
    scratch.scan()
    shutil.rmtree(scratch.root)
    scratch.scan()
    (scratch.root / "tmp").mkdir(parents=True)
    scratch.scan()
    assert list(scratch.ledger.cursors()) == []
    scratch.write(gemini("g-1"), gemini("g-2"))
    scratch.scan()
    assert scratch.turns == 2


def test_a_root_that_comes_after_the_start_is_found(scratch: Home) -> None:
    scratch.scan()
    assert scratch.ledger.complete
    scratch.write(gemini())
    scratch.scan()
    assert scratch.turns == 1


def test_several_roots_are_one_history(tmp_path: Path) -> None:
    """A moved root, a sandbox and a copy of a home: the same messages count once."""
    clock = Clock()
    one, two, moved = tmp_path / "one", tmp_path / "two", tmp_path / "moved"
    for root, ids in ((one, ["g-1", "g-2"]), (two, ["g-2", "g-3"])):
        touch(root, "shop/chats/session-a.jsonl")
        path = root / "tmp/shop/chats/session-a.jsonl"
        path.write_bytes(b"".join(dumps(gemini(id)) + b"\n" for id in ids))
    ledger = Ledger(tmp_path / "ledger.db", BOOK, clock)
    for roots in ([one, two], [two, one], [moved, two], [one, moved, two]):
        if moved in roots and not moved.exists():
            one.rename(moved)
        collector = Collector([str(root) for root in roots], ledger, Stats(0), clock)
        collector.scan()
        collector.close()
        assert ledger.snapshot().ledger_turns == 3
    assert ledger.scanned_roots() == {str(one), str(two), str(moved)}
    ledger.close()


def test_cursors_of_a_root_that_is_not_asked_for_are_kept(tmp_path: Path) -> None:
    with home(tmp_path) as scratch:
        scratch.write(gemini())
        scratch.scan()
        scratch.collector.close()
        other = Collector([str(tmp_path / "other")], scratch.ledger, Stats(0), scratch.clock)
        other.scan()
        assert len(list(scratch.ledger.cursors())) == 1
