"""Asks Prometheus what a dashboard asks, with the variables filled in as Grafana does it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Dashboard = Mapping[str, Any]
Series = list[dict[str, Any]]


class Source(Protocol):
    """A Prometheus."""

    def query(self, expr: str, at: float) -> Series:
        """Return what there is at a time."""
        ...

    def query_range(self, expr: str, start: float, end: float, step: float) -> Series:
        """Return what there is between two times."""
        ...

    def series(self, selector: str) -> list[dict[str, str]]:
        """Return the label sets that match a selector."""
        ...


@dataclass(frozen=True, slots=True)
class Window:
    """The dashboard's time range (seconds since the epoch), and how many points a panel has room
    for; `scrape` is the scrape interval that the data source is set to, in seconds."""

    start: float
    end: float
    points: int = 300
    scrape: float = 15

    def step(self, panel: Dashboard) -> float:
        """Return the interval of a panel's points: `$__interval`."""
        least = _seconds(panel.get("interval", "")) or self.scrape
        return max(least, (self.end - self.start) / self.points)

    def fill(self, text: str, step: float, chosen: Mapping[str, str]) -> str:
        """Return a query with its variables replaced."""
        filled = {
            "__range": f"{self.end - self.start:.0f}s",
            "__interval": f"{step:.0f}s",
            "__rate_interval": f"{max(step + self.scrape, 4 * self.scrape):.0f}s",
            **chosen,
        }
        return re.sub(r"\$\{?(\w+)\}?", lambda name: filled[name[1]], text)


def panels(dashboard: Dashboard) -> Iterator[Dashboard]:
    """Yield the panels that ask something."""
    return (panel for panel in dashboard["panels"] if panel.get("targets"))


def everything(dashboard: Dashboard) -> dict[str, str]:
    """Return what the variables hold while "All" is chosen of each."""
    variables = dashboard["templating"]["list"]
    return {each["name"]: each["allValue"] for each in variables if "allValue" in each}


def values(source: Source, variable: Dashboard, chosen: Mapping[str, str]) -> list[str]:
    """Return what a variable of type query can be set to, while others hold what is `chosen`."""
    asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
    assert asked, variable["query"]
    selector = Window(0, 1).fill(asked[1], 1, chosen)
    return sorted({found[asked[2]] for found in source.series(selector) if asked[2] in found})


def ask(
    source: Source, panel: Dashboard, window: Window, chosen: Mapping[str, str]
) -> dict[str, Series]:
    """Return the answers to a panel's targets by their reference."""
    step = window.step(panel)
    answers = {}
    for target in panel["targets"]:
        expr = window.fill(target["expr"], step, chosen)
        if target["instant"]:
            answers[target["refId"]] = source.query(expr, window.end)
        else:
            # Grafana moves the points to whole multiples of the step.
            start = window.start // step * step
            answers[target["refId"]] = source.query_range(expr, start, window.end, step)
    return answers


def _seconds(text: str) -> float:
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]] if text else 0
