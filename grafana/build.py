"""Writes the dashboards: `python -m grafana.build`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from . import fleet, health, overview, project
from .frame import render

FOLDER: Final = Path(__file__).parent / "dashboards"
"""Where the generated files are kept."""


def build() -> dict[str, str]:
    """Return the content of each file by its name."""
    names = {"overview": overview, "project": project, "health": health, "fleet": fleet}
    return {f"{name}.json": render(module.page()) for name, module in names.items()}


def main() -> None:
    """Write all files."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in build().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
