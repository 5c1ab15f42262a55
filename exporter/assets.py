"""The dashboards, rules, deployment files and documents that come with the program."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

_PARTS: Final = ("grafana/dashboards", "deploy", "docs")


class AssetsError(Exception):
    """The files cannot be written; one line that says what to do."""


def write_assets(folder: Path) -> list[Path]:
    """Write all files below `folder`, which is made if need be, and return their paths.

    Raises AssetsError, before anything is written, if a file is there already with other content.
    """
    root = bundled()
    contents = {
        folder / part / path: content
        for part in _PARTS
        for path, content in _walk(root.joinpath(part))
    }
    try:
        for path, content in contents.items():
            if path.exists() and path.read_bytes() != content:
                raise AssetsError(f"{path} has been changed: choose another folder, or remove it")
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except OSError as error:
        raise AssetsError(f"{folder} cannot be written: {error.strerror}") from None
    return list(contents)


def bundled() -> Traversable:
    """Return the folder that holds the files: in the package, or beside it in a checkout."""
    packed = files(__package__).joinpath("bundled")
    return packed if packed.is_dir() else files(__package__).joinpath("..")


def _walk(folder: Traversable) -> list[tuple[Path, bytes]]:
    found: list[tuple[Path, bytes]] = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_file():
            found.append((Path(entry.name), entry.read_bytes()))
        elif entry.is_dir() and entry.name != "__pycache__":
            found += [(Path(entry.name) / path, content) for path, content in _walk(entry)]
    return found
