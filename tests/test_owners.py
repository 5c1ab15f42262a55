"""Several people's homes on one host, names of one's own for projects, and the label owner."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exporter.ledger.audience import Audience
from exporter.ledger.labels import LabelRules, ProjectLabel
from exporter.outputs.prometheus import Exposition
from exporter.transcripts.layout import matching, owner_of
from tests.program import Metrics
from tests.support import Home, dumps, gemini, header, home


class Homes:
    """Homes of several people below one folder, read through a pattern."""

    def __init__(self, folder: Path, scratch: Home) -> None:
        self.folder = folder
        self.scratch = scratch

    def write(self, owner: str, number: int, project: str = "shop", path: str = "") -> Path:
        """Append one reply to a transcript of somebody."""
        chats = self.folder / owner / ".gemini" / "tmp" / project / "chats"
        chats.mkdir(parents=True, exist_ok=True)
        if path:
            (chats.parent / ".project_root").write_text(path)
        lines = [header(f"{owner}-{project}"), gemini(f"{owner}-{project}-{number}")]
        with (chats / "session-a.jsonl").open("ab") as file:
            file.writelines(dumps(line) + b"\n" for line in lines)
        return chats

    def turns(self, **rules: object) -> dict[tuple[tuple[str, str], ...], float]:
        """Scan under these rules; return turns by the labels project and owner."""
        self.scratch.rules = LabelRules(**rules)  # type: ignore[arg-type]
        self.scratch.restart()
        self.scratch.scan()
        exposition = Exposition(self.scratch.ledger, self.scratch.stats, self.scratch.clock)
        shown = Metrics(exposition.render().decode()).series("gemini_cli_turns_total")
        return {
            tuple(label for label in labels if label[0] != "model"): value
            for labels, value in shown.items()
        }


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[Homes]:
    folder = tmp_path / "people"
    with home(tmp_path, folder / "*" / ".gemini") as scratch:
        yield Homes(folder, scratch)


def test_a_home_that_appears_later_is_read_without_a_restart(homes: Homes) -> None:
    homes.write("ana", 1)
    assert sum(homes.turns().values()) == 1
    homes.write("bo", 1)
    homes.scratch.scan()
    assert homes.scratch.turns == 2


def test_with_owners_one_short_name_is_a_series_for_each(homes: Homes) -> None:
    homes.write("ana", 1)
    homes.write("bo", 1)
    homes.write("bo", 2)
    assert homes.turns() == {(("project", "shop"),): 3}
    assert homes.turns(owner=True) == {
        (("owner", "ana"), ("project", "shop")): 1,
        (("owner", "bo"), ("project", "shop")): 2,
    }
    assert homes.turns(owner=True, show=ProjectLabel.NONE) == {
        (("owner", "ana"),): 1,
        (("owner", "bo"),): 2,
    }
    assert homes.turns() == {(("project", "shop"),): 3}


def test_two_folders_with_one_short_name_can_be_named_or_merged(homes: Homes) -> None:
    homes.write("ana", 1, path="/src/shop")
    homes.write("bo", 1, path="/old/shop")
    tell_apart = {label for ((_, label),) in homes.turns()}
    assert len(tell_apart) == 2
    assert homes.turns(names={"/old/shop": "old-shop"}).keys() == {
        (("project", "shop"),),
        (("project", "old-shop"),),
    }
    assert homes.turns(names={"/old/shop": "shop"}) == {(("project", "shop"),): 2}
    assert homes.turns(names={"shop": "one"}) == {(("project", "one"),): 2}


def test_other_labels_are_history_and_not_held(homes: Homes) -> None:
    homes.write("ana", 1)
    homes.turns()
    homes.scratch.ledger.asked(Audience.SCRAPERS)
    homes.scratch.ledger.delivered(Audience.SCRAPERS, ())
    homes.scratch.ledger.tend()
    homes.turns(owner=True)
    assert not any(homes.scratch.ledger.snapshot().held.values())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_home_that_cannot_be_read_hides_no_other(homes: Homes) -> None:
    homes.write("ana", 1)
    (homes.write("bo", 1).parents[2]).chmod(0)
    assert sum(homes.turns().values()) == 1
    assert homes.scratch.stats.file_errors["permission"] == 1


def test_a_home_that_is_refused_hides_no_other(
    homes: Homes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as root, who may read everything."""
    homes.write("ana", 1)
    refused = str(homes.write("bo", 1).parents[1])
    scandir: Callable[..., Iterator[os.DirEntry[str]]] = os.scandir

    def guarded(path: str) -> Iterator[os.DirEntry[str]]:
        if str(path).startswith(refused):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    assert sum(homes.turns().values()) == 1
    assert homes.scratch.stats.file_errors["permission"] >= 1


@pytest.mark.parametrize(
    ("root", "owner"),
    [
        ("/home/ana/.gemini", "ana"),
        ("/Users/bo/.cache/.gemini", "bo"),
        ("/data/carol", "carol"),
        ("/", ""),
    ],
)
def test_the_owner_is_the_folder_that_holds_the_root(root: str, owner: str) -> None:
    assert owner_of(root) == owner


def test_a_folder_whose_name_looks_like_a_pattern_is_itself(tmp_path: Path) -> None:
    odd = tmp_path / "a[1]"
    odd.mkdir()
    assert matching([str(odd), str(tmp_path / "[z]")]) == (str(odd),)
