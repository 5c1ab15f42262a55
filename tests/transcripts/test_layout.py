"""Which folders are listed and which files in them are transcripts."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from exporter.transcripts import layout
from exporter.transcripts.layout import Folder
from tests.support import audited

HASH = "9f3a" * 16


def refuse(error: OSError) -> None:
    raise error


def found(root: Path) -> set[str]:
    """Return the transcripts below a root, relative to its `tmp`."""
    top = root / "tmp"
    return {
        os.path.relpath(os.path.join(folder.path, name), top)
        for folder in layout.tree(str(root), refuse).chats
        for name, _ in layout.transcripts(folder, refuse)
    }


def make(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


@pytest.mark.parametrize(
    "name",
    [
        "session-2026-01-20T09-15-7c1d0a2b.json",
        "session-2026-01-20T09-15-7c1d0a2b.jsonl",
        "session-1768900000000-7c1d0a2b.jsonl",
        "session-2026-01-20T09-15-my_id.jsonl",
        "session-2026-01-20T09-15-7c1d0a2b.jsonl.unreadable-1768900000000",
        "session-x.json",
        "session-a b\n.jsonl",
        "session-\udcff.jsonl",
    ],
)
def test_main_sessions(name: str) -> None:
    assert layout.is_transcript(name, "")
    assert layout.is_transcript(name, "parent"), "and those of a subagent may be called so"


@pytest.mark.parametrize("name", ["a1b2c3.json", "a1b2c3.jsonl", f"{HASH[:32]}.jsonl", "1.json"])
def test_subagents_have_no_prefix_and_a_folder_of_their_own(name: str) -> None:
    assert layout.is_transcript(name, "parent")
    assert not layout.is_transcript(name, "")


@pytest.mark.parametrize("parent", ["", "parent"])
@pytest.mark.parametrize(
    "name",
    [
        "session-a.jsonl.tmp-4711",
        "session-a.json.tmp-4711",
        "session-a.jsonl.bak",
        "session-a.json.bak",
        "session-a.jsonl.unreadable-",
        "session-a.jsonl.unreadable-17x",
        "session-a.jsonl.unreadable-17.bak",
        "session-a.json.unreadable-17",
        "session-a.jsonl~",
        "session-a.JSON",
        "session-a.txt",
        "session-a",
        "session-ajson",
        "projects.json.17",
        "shell_history",
        ".jsonl",
        "",
    ],
)
def test_everything_else_is_none(name: str, parent: str) -> None:
    assert not layout.is_transcript(name, parent)


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("session-a.json", True),
        ("session-a.jsonl", False),
        ("session-a.jsonl.unreadable-17", False),
    ],
)
def test_a_document_is_told_from_lines_by_its_name(name: str, document: bool) -> None:
    assert layout.is_document(name) is document


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (HASH, True),
        ("0" * 64, True),
        (HASH.upper(), False),
        (HASH[:-1], False),
        (HASH + "0", False),
        (HASH[:-1] + "g", False),
        (HASH[:-1] + "\n", False),
        ("shop", False),
    ],
)
def test_a_hash_folder_is_told_from_a_slug(name: str, expected: bool) -> None:
    assert layout.is_hash(name) is expected


TRANSCRIPTS = {
    "shop/chats/session-a.json",
    "shop/chats/session-a.jsonl",
    "shop/chats/session-a.jsonl.unreadable-17",
    "shop/chats/5e551001-0000/a1b2c3.json",
    "shop/chats/5e551001-0000/5e551001-1111.jsonl",
    "shop/chats/5e551001-0000/x.jsonl.unreadable-17",
    "shop/chats/skill-extraction-0a1b2c3d/a1b2c3.jsonl",
    "shop-1/chats/session-b.jsonl",
    f"{HASH}/chats/session-c.json",
}

OTHERS = (
    "session-a.jsonl",
    "shop/session-a.jsonl",
    "shop/logs.json",
    "shop/checkpoint-x.json",
    "shop/checkpoints/session-a.json",
    "shop/shell_history",
    "shop/.project_root",
    "shop/logs/session-a.jsonl",
    "shop/memory/session-a.json",
    "shop/5e551001-0000/plans/session-a.json",
    "shop/tool-outputs/session-5e551001/session-a.json",
    "shop/chats/tool-outputs/session-a.jsonl",
    "shop/chats/tool-outputs/session-5e551001/a.jsonl",
    "shop/chats/a1b2c3.json",
    "shop/chats/logs.json",
    "shop/chats/session-a.jsonl.tmp-12",
    "shop/chats/session-a.json.bak",
    "shop/chats/5e551001-0000/deeper/a1b2c3.json",
    "shop/chats/5e551001-0000/tool-outputs/a1b2c3.json",
    "shop/chats/5e551001-0000/a1b2c3.json.tmp-12",
    "bin/rg",
    "chats/session-a.jsonl",
)


def test_a_whole_home(tmp_path: Path) -> None:
    make(tmp_path / "tmp", *TRANSCRIPTS, *OTHERS)
    make(tmp_path, "projects.json", "history/shop/.project_root", "history/chats/session-a.json")
    assert found(tmp_path) == TRANSCRIPTS


def test_nothing_is_listed_but_the_folders_of_chats_and_those_above_them(tmp_path: Path) -> None:
    """Tool outputs may be many thousands; what is not listed costs nothing."""
    make(tmp_path / "tmp", *TRANSCRIPTS, *OTHERS)
    with audited() as events:
        found(tmp_path)
    top = tmp_path / "tmp"
    assert {path for event, path in events if event in ("os.scandir", "os.listdir")} == {
        str(top),
        *(str(top / Path(path).parent) for path in TRANSCRIPTS),
    }
    assert [path for event, path in events if event == "open"] == []


def test_the_tree_names_projects_and_parents_with_slugs_first(tmp_path: Path) -> None:
    top = tmp_path / "tmp"
    make(top, *TRANSCRIPTS, "bin/rg")
    tree = layout.tree(str(tmp_path), refuse)
    assert [*tree.chats] == [
        Folder(str(top / "shop/chats"), "shop", ""),
        Folder(str(top / "shop/chats/5e551001-0000"), "shop", "5e551001-0000"),
        Folder(
            str(top / "shop/chats/skill-extraction-0a1b2c3d"), "shop", "skill-extraction-0a1b2c3d"
        ),
        Folder(str(top / "shop-1/chats"), "shop-1", ""),
        Folder(str(top / HASH / "chats"), HASH, ""),
    ]
    projects = [str(top / name) for name in ("bin", "shop", "shop-1", HASH)]
    assert [*tree.parents] == [str(tmp_path), str(top), *projects]


def test_a_slug_comes_before_a_hash_that_sorts_before_it(tmp_path: Path) -> None:
    make(tmp_path / "tmp", f"{'0' * 64}/chats/session-a.json", "zoo/chats/session-a.json")
    projects = [folder.project for folder in layout.tree(str(tmp_path), refuse).chats]
    assert projects == ["zoo", "0" * 64]


def test_a_missing_root_and_a_root_without_tmp_have_nothing(tmp_path: Path) -> None:
    errors: list[OSError] = []
    for root in (tmp_path, tmp_path / "missing"):
        tree = layout.tree(str(root), errors.append)
        assert [*tree.chats] == []
        assert [*tree.parents] == [str(root), str(root / "tmp")]
    assert all(isinstance(error, FileNotFoundError) for error in errors)


def test_links_below_tmp_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    make(outside, "chats/session-a.jsonl", "session-b.jsonl", "c.jsonl")
    top = tmp_path / "gemini" / "tmp"
    make(top, "shop/chats/session-d.jsonl", "blog/logs.json")
    (top / "linked").symlink_to(outside)
    (top / "blog" / "chats").symlink_to(outside / "chats")
    (top / "shop" / "chats" / "parent").symlink_to(outside)
    refused: list[OSError] = []
    tree = layout.tree(str(top.parent), refused.append)
    assert [folder.path for folder in tree.chats] == [str(top / "shop" / "chats")]
    assert {(error.errno, Path(error.filename).name) for error in refused} == {
        (errno.ELOOP, "linked"),
        (errno.ELOOP, "chats"),
        (errno.ELOOP, "parent"),
    }


def test_the_root_itself_and_its_tmp_may_be_links(tmp_path: Path) -> None:
    make(tmp_path / "real", "shop/chats/session-a.jsonl")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "tmp").symlink_to(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "root")
    assert found(tmp_path / "link") == {"shop/chats/session-a.jsonl"}


def test_a_file_link_is_given_as_what_it_is(tmp_path: Path) -> None:
    make(tmp_path, "tmp/shop/chats/session-a.jsonl")
    chats = tmp_path / "tmp/shop/chats"
    (chats / "session-b.jsonl").symlink_to("session-a.jsonl")
    [folder] = layout.tree(str(tmp_path), refuse).chats
    status = dict(layout.transcripts(folder, refuse))
    assert status["session-b.jsonl"].st_ino == (chats / "session-b.jsonl").lstat().st_ino


def test_a_file_in_the_place_of_a_folder_is_no_error(tmp_path: Path) -> None:
    make(tmp_path / "tmp", "file", "shop/chats")
    assert found(tmp_path) == set()


def test_a_folder_that_cannot_be_listed_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "tmp", "a/chats/session-a.jsonl", "b/chats/session-b.jsonl")
    real, errors = os.scandir, list[OSError]()

    def scandir(path: str) -> object:
        if path.endswith("a/chats"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    names = [
        name
        for folder in layout.tree(str(tmp_path), errors.append).chats
        for name, _ in layout.transcripts(folder, errors.append)
    ]
    assert names == ["session-b.jsonl"]
    assert {type(error) for error in errors} == {PermissionError}


def test_a_folder_that_goes_between_two_looks_is_an_error_told(tmp_path: Path) -> None:
    errors: list[OSError] = []
    gone = Folder(str(tmp_path / "gone"), "shop", "")
    assert list(layout.transcripts(gone, errors.append)) == []
    assert [type(error) for error in errors] == [FileNotFoundError]


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/tmp/caf\xe9/chats/\xff"
    os.makedirs(folder)
    for path in (folder + b"/\xfe.jsonl", folder + b"/../session-\xfd.json"):
        with open(path, "wb"):
            pass
    assert {os.fsencode(path) for path in found(tmp_path)} == {
        b"caf\xe9/chats/\xff/\xfe.jsonl",
        b"caf\xe9/chats/session-\xfd.json",
    }
