"""What all dashboards have in common, and how a dashboard becomes JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DashboardLink,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DashboardLinkType

from .panels import Panel
from .variables import choices, data_source

TAG: Final = "gemini-cli-mixin"
"""Marks the dashboards that link to each other."""


@dataclass(frozen=True, slots=True)
class Page:
    """A dashboard: its address, its title, what it is for, and its panels under row titles.

    `more` are choices of its own, after those that all dashboards share.
    """

    uid: str
    title: str
    about: str
    rows: Mapping[str, Sequence[Panel]]
    hide_usage: bool = False
    more: Sequence[QueryVariable] = ()


def render(page: Page) -> str:
    """Return a dashboard as Grafana's JSON model, the same text for the same page."""
    dashboard = (
        Dashboard(page.title)
        .uid(page.uid)
        .description(page.about)
        .tags([TAG])
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .timezone("browser")
        .refresh("1m")
        .time("now-24h", "now")
        .link(_links())
        .with_variable(data_source())
    )
    for variable in (*choices(page.hide_usage), *page.more):
        dashboard.with_variable(variable)
    for title, panels in page.rows.items():
        dashboard.with_row(Row(title))
        for panel in panels:
            dashboard.with_panel(panel)
    model: dict[str, Any] = json.loads(json.dumps(dashboard.build(), cls=JSONEncoder))
    # Else the SDK hides them in a menu that only new versions of Grafana have.
    for link in model["links"]:
        del link["placement"]
    # The numbers that links and provisioning go by: the database's is Grafana's to give, those of
    # the panels are ours to keep.
    model["id"] = None
    for number, panel in enumerate(model["panels"], start=1):
        panel["id"] = number
    return json.dumps(model, indent=2, sort_keys=True) + "\n"


def _links() -> DashboardLink:
    link = DashboardLink("Gemini CLI").type(DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.include_vars(True).keep_time(True)
