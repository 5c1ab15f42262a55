"""How a project folder gets its name: markers, the registry, hashes, and what is left unknown."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from exporter.ledger.model import Project
from exporter.transcripts import projects as module
from exporter.transcripts.projects import Projects
from tests.support import gemini, header, home


def digest(path: str) -> str:
    return sha256(os.fsencode(path)).hexdigest()


SHOP = "/home/ana/shop"
HASH = digest(SHOP)
UNKNOWN = Project(f"unknown-{HASH[:8]}")


@pytest.fixture
def errors() -> list[OSError]:
    """What the projects told of, files that are missing aside."""
    return []


@pytest.fixture
def projects(tmp_path: Path, errors: list[OSError]) -> Projects:
    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            errors.append(error)

    return Projects(str(tmp_path), note)


def mark(root: Path, slug: str, path: str | bytes) -> Path:
    """Write the `.project_root` of a slug folder."""
    marker = root / "tmp" / slug / ".project_root"
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.write_bytes(os.fsencode(path))
    return marker


def register(root: Path, projects: Any) -> Path:
    registry = root / "projects.json"
    registry.write_text(json.dumps({"projects": projects}))
    return registry


# Slug folders


def test_a_slug_has_the_path_of_its_marker(tmp_path: Path, projects: Projects) -> None:
    mark(tmp_path, "shop", SHOP)
    assert projects.project("shop") == Project("shop", SHOP)


def test_the_marker_counts_more_than_the_registry(tmp_path: Path, projects: Projects) -> None:
    mark(tmp_path, "shop", SHOP)
    register(tmp_path, {"/elsewhere": "shop"})
    projects.refresh()
    assert projects.project("shop") == Project("shop", SHOP)


def test_without_a_marker_the_registry_tells(tmp_path: Path, projects: Projects) -> None:
    register(tmp_path, {SHOP: "shop", "/home/ana/blog": "blog"})
    projects.refresh()
    assert projects.project("shop") == Project("shop", SHOP)


@pytest.mark.parametrize("content", ["", "\n", "  "])
def test_an_empty_marker_is_none(tmp_path: Path, projects: Projects, content: str) -> None:
    mark(tmp_path, "shop", content)
    register(tmp_path, {SHOP: "shop"})
    projects.refresh()
    assert projects.project("shop") == Project("shop", SHOP)


def test_a_slug_that_nothing_explains_is_a_project_all_the_same(projects: Projects) -> None:
    assert projects.project("shop") == Project("shop")


def test_a_path_that_is_told_later_is_taken(tmp_path: Path, projects: Projects) -> None:
    assert projects.project("shop") == Project("shop")
    mark(tmp_path, "shop", SHOP)
    assert projects.project("shop") == Project("shop", SHOP)


def test_a_path_that_is_not_utf8_keeps_its_bytes(tmp_path: Path, projects: Projects) -> None:
    mark(tmp_path, "caf", b"/home/ana/caf\xe9")
    path = projects.project("caf").path
    assert os.fsencode(path) == b"/home/ana/caf\xe9"
    assert projects.project(digest(path)) == Project("caf", path)


@pytest.mark.parametrize("kind", ["link", "FIFO", "folder", "too large"])
def test_a_marker_that_is_no_small_file_is_none(
    tmp_path: Path, projects: Projects, errors: list[OSError], kind: str
) -> None:
    marker = mark(tmp_path, "shop", "x" * 5_000)
    if kind != "too large":
        marker.unlink()
    if kind == "link":
        (tmp_path / "secret").write_text("/secret")
        marker.symlink_to(tmp_path / "secret")
    elif kind == "FIFO":
        os.mkfifo(marker)
    elif kind == "folder":
        marker.mkdir()
    assert projects.project("shop") == Project("shop")
    assert [error.filename for error in errors] == [str(marker)]


# Hash folders


def test_a_hash_is_that_of_a_path_in_the_registry(tmp_path: Path, projects: Projects) -> None:
    register(tmp_path, {SHOP: "shop"})
    projects.refresh()
    assert projects.project(HASH) == Project("shop", SHOP)


def test_a_hash_is_that_of_a_path_in_a_marker(tmp_path: Path, projects: Projects) -> None:
    mark(tmp_path, "shop", SHOP)
    projects.project("shop")
    assert projects.project(HASH) == Project("shop", SHOP)


def test_a_hash_is_taken_from_the_path_as_it_stands(tmp_path: Path, projects: Projects) -> None:
    register(tmp_path, {SHOP.upper(): "shop", f"{SHOP}/": "other"})
    projects.refresh()
    assert projects.project(HASH) == UNKNOWN


def test_a_hash_is_that_of_the_transcripts_in_a_slug_folder(
    tmp_path: Path, projects: Projects
) -> None:
    """On Windows the stored paths are lower-cased, so that their hash is another one."""
    register(tmp_path, {SHOP.lower(): "shop"})
    windows = digest("C:\\Users\\Ana\\Shop")
    projects.refresh()
    assert projects.project(windows) == Project(f"unknown-{windows[:8]}")
    projects.learn("shop", windows)
    assert projects.project(windows) == Project("shop", SHOP)


@pytest.mark.parametrize("odd", ["", "0" * 63, "x" * 64, HASH.upper()])
def test_what_is_no_hash_teaches_nothing(projects: Projects, odd: str) -> None:
    projects.learn("shop", odd)
    assert projects.project(HASH) == UNKNOWN


def test_a_hash_folder_teaches_nothing_about_itself(projects: Projects) -> None:
    projects.learn(HASH, HASH)
    assert projects.project(HASH) == UNKNOWN


def test_the_first_slug_with_a_hash_has_it(projects: Projects) -> None:
    """One project can own several slugs over time."""
    projects.learn("shop", HASH)
    projects.learn("shop-1", HASH)
    assert projects.project(HASH) == Project("shop")


def test_an_unknown_hash_is_named_by_its_start_until_it_is_known(
    tmp_path: Path, projects: Projects
) -> None:
    assert projects.project(HASH) == UNKNOWN
    register(tmp_path, {SHOP: "shop"})
    projects.refresh()
    assert projects.project(HASH) == Project("shop", SHOP)


# The registry


def test_the_registry_is_read_again_when_it_changes(tmp_path: Path, projects: Projects) -> None:
    register(tmp_path, {SHOP: "shop"})
    projects.refresh()
    register(tmp_path, {SHOP: "shop", "/home/ana/blog": "blog"})
    projects.refresh()
    assert projects.project("blog") == Project("blog", "/home/ana/blog")


def test_an_unchanged_registry_is_not_read_again(
    tmp_path: Path, projects: Projects, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(tmp_path, {SHOP: "shop"})
    projects.refresh()
    monkeypatch.delattr(module, "read_small")
    projects.refresh()
    assert projects.project(HASH) == Project("shop", SHOP)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"projects": {"/home/ana/shop": "sh',
        b"\0" * 40,
        b"[]",
        b'{"projects": []}',
        b'{"projects": {"/home/ana/shop": 5}}',
        b'{"projects": {"\xff": "shop"}}',
        b"[" * 100_000,
    ],
    ids=["empty", "half", "NUL", "list", "list inside", "number", "bad UTF-8", "deep"],
)
def test_a_half_written_registry_is_read_once_it_is_whole(
    tmp_path: Path, projects: Projects, content: bytes
) -> None:
    registry = tmp_path / "projects.json"
    registry.write_bytes(content)
    projects.refresh()
    assert projects.project(HASH) == UNKNOWN
    whole = json.dumps({"projects": {SHOP: "shop"}}).encode()
    registry.write_bytes(whole)
    projects.refresh()
    assert projects.project(HASH) == Project("shop", SHOP)


def test_a_broken_registry_keeps_what_was_known(tmp_path: Path, projects: Projects) -> None:
    registry = register(tmp_path, {SHOP: "shop"})
    projects.refresh()
    registry.write_bytes(b'{"proj')
    projects.refresh()
    registry.unlink()
    projects.refresh()
    assert projects.project("shop") == Project("shop", SHOP)


@pytest.mark.parametrize("content", [b"{}", b'{"version": 2, "projects": {}}'])
def test_a_registry_without_projects_is_one(
    tmp_path: Path, projects: Projects, content: bytes
) -> None:
    (tmp_path / "projects.json").write_bytes(content)
    projects.refresh()
    assert projects.project("shop") == Project("shop")


@pytest.mark.parametrize("kind", ["link", "FIFO", "folder"])
def test_a_registry_that_is_no_file_is_not_followed_and_does_not_block(
    tmp_path: Path, projects: Projects, errors: list[OSError], kind: str
) -> None:
    registry = tmp_path / "projects.json"
    if kind == "link":
        register(tmp_path, {SHOP: "shop"}).rename(tmp_path / "other")
        registry.symlink_to(tmp_path / "other")
    elif kind == "FIFO":
        os.mkfifo(registry)
    else:
        registry.mkdir()
    projects.refresh()
    assert projects.project("shop") == Project("shop")
    assert [error.filename for error in errors] == [str(registry)]


def test_a_registry_over_the_limit_is_none(
    tmp_path: Path, projects: Projects, errors: list[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_REGISTRY_LIMIT", 10)
    register(tmp_path, {SHOP: "shop"})
    projects.refresh()
    assert projects.project("shop") == Project("shop")
    assert len(errors) == 1


def test_of_very_many_projects_only_so_many_are_remembered(
    tmp_path: Path, projects: Projects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project beyond them has its path all the same; only its hash is not known."""
    monkeypatch.setattr(module, "_PROJECTS_MAX", 2)
    for name in "abc":
        mark(tmp_path, name, f"/home/{name}")
        assert projects.project(name) == Project(name, f"/home/{name}")
    projects.learn("c", HASH)
    assert projects.project("c") == Project("c", "/home/c")
    assert projects.project(digest("/home/b")) == Project("b", "/home/b")
    assert projects.project(digest("/home/c")).slug.startswith("unknown-")
    assert projects.project(HASH) == UNKNOWN


def test_a_hash_folder_of_the_first_scan_is_named_by_what_a_slug_folder_carries(
    tmp_path: Path,
) -> None:
    """The path is not known as it was spelled, as on Windows: only the projectHash tells."""
    digest = "ab" * 32
    with home(tmp_path) as scratch:
        scratch.write(header(), gemini("g-1"), project=digest)
        scratch.write({**header("s-2"), "projectHash": digest}, gemini("g-2"), project="shop")
        assert set(scratch.scan().activity) == {"shop"}
