"""Draws the dashboards over invented data into `screenshots/`: `python -m grafana.render`.

Needs npm, chromium, prometheus and promtool on the PATH, and a few minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from grafana.asking import Dashboard, Window, ask, everything, panels
from grafana.build import build
from tests.prometheus import Prometheus

from .fleet import laptops, record
from .history import SCRAPE, machines, write_blocks

HERE: Final = Path(__file__).parent
SCREENSHOTS: Final = HERE.parent / "screenshots"

END: Final = datetime(2026, 11, 19, 17, 30, tzinfo=UTC)
"""A Thursday: what is shown are the 24 hours before."""

PROJECT: Final = "harbor-api"
"""The project that the dashboard of a project shows."""

WIDTH, HEAD, ROW = 1500, 92, 38
"""Pixels: of a picture, of what stands above the panels, of a row of the grid."""


def main() -> None:
    """Make all pictures. Raises CalledProcessError if a program fails."""
    for command in ("install --no-audit --no-fund", "run bundle"):
        subprocess.run(["npm", "--silent", *command.split()], cwd=HERE, check=True)
    SCREENSHOTS.mkdir(exist_ok=True)
    end = END.timestamp()
    window = Window(end - 86_400, end, points=600, scrape=SCRAPE)
    with tempfile.TemporaryDirectory() as folder:
        # A little more than what is shown, so that rates have something to begin with.
        here, hours = Path(folder), 25
        team = write_blocks(here / "team", machines(here / "team", END), END, hours)
        fleet = write_blocks(here / "fleet", laptops(here / "fleet", END), END, hours)
        record(fleet, END, hours)
        for file, text in build().items():
            model = json.loads(text)
            with Prometheus(fleet if file == "fleet.json" else team, {}) as prometheus:
                job = _job(prometheus, model, window)
            _shoot(file.removesuffix(".json"), model, job, here / "chromium")


def _job(prometheus: Prometheus, model: Dashboard, window: Window) -> str:
    """Return all that a page draws, as JSON."""
    chosen = everything(model)
    if model["uid"] == "gemini-cli-project":
        chosen["project"] = PROJECT
    shown = {
        variable["label"]: PROJECT if chosen.get(variable["name"]) == PROJECT else "All"
        for variable in model["templating"]["list"]
        if not variable.get("hide")
    }
    answers = {
        panel["id"]: {
            "step": window.step(panel),
            "targets": ask(prometheus, panel, window, chosen),
        }
        for panel in panels(model)
    }
    times = {"start": window.start, "end": window.end}
    size = {"width": WIDTH, "head": HEAD, "row": ROW}
    job = {"dashboard": model, "window": times, "shown": shown, "answers": answers, "size": size}
    return json.dumps(job | {"shown": shown | {"Data source": "Prometheus"}})


def _shoot(name: str, model: Dashboard, job: str, profile: Path) -> None:
    page = HERE / "build" / f"{name}.html"
    script = "const JOB = " + job.replace("</", r"<\u002f")
    page.write_text(
        '<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="page.css">'
        f'<div id="page"></div><script>{script}</script>'
        '<script src="page.js"></script>'
    )
    grids = (panel["gridPos"] for panel in model["panels"])
    height = HEAD + ROW * max(grid["y"] + grid["h"] for grid in grids)
    command = ["chromium", "--headless", "--disable-gpu", "--hide-scrollbars"]
    if os.geteuid() == 0:
        command.append("--no-sandbox")  # chromium does not run as root with one
    command += [f"--user-data-dir={profile}", f"--window-size={WIDTH},{height}"]
    # The page's clock runs ahead until all is drawn.
    command += ["--virtual-time-budget=10000", f"--screenshot={SCREENSHOTS / name}.png"]
    environment = os.environ | {"TZ": "UTC"}
    subprocess.run(
        [*command, page.as_uri()],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    main()
