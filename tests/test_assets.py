"""The files that come with the program, as `assets` writes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from exporter import cli
from exporter.assets import AssetsError, write_assets

PROJECT = Path(__file__).parents[1]


def test_dashboards_deployment_files_and_documents_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "assets"
    written = write_assets(folder)
    expected = {
        path.relative_to(PROJECT)
        for part in ("grafana/dashboards", "deploy", "docs")
        for path in (PROJECT / part).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {path.relative_to(folder) for path in written} == expected
    assert all((folder / path).read_bytes() == (PROJECT / path).read_bytes() for path in expected)
    assert Path("grafana/dashboards/overview.json") in expected
    assert Path("deploy/compose.yaml") in expected
    assert Path("docs/runbooks.md") in expected


def test_links_between_the_written_files_lead_somewhere(tmp_path: Path) -> None:
    pages = [path for path in write_assets(tmp_path) if path.suffix == ".md"]
    assert len(pages) > 5
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_what_somebody_changed_is_not_overwritten(tmp_path: Path) -> None:
    write_assets(tmp_path)
    assert write_assets(tmp_path)
    changed = tmp_path / "deploy" / "compose.yaml"
    changed.write_text("mine")
    (tmp_path / "deploy" / "README.md").unlink()
    with pytest.raises(AssetsError, match="has been changed: choose another folder"):
        write_assets(tmp_path)
    assert changed.read_text() == "mine"
    assert not (tmp_path / "deploy" / "README.md").exists()


def test_a_folder_that_cannot_be_made_is_one_line_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main(["assets", str(tmp_path / "file" / "below")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("gemini-cli-exporter: error: ")
    assert error.endswith("cannot be written: Not a directory\n")
