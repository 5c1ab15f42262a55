"""What the program can be asked to do, and the options that only one command has."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from .declaring import SWITCH, Group, Written, options_of
from .values import AbsolutePath, Moment, Several, Switch


class Command(StrEnum):
    """What the program is asked to do."""

    SERVE = "serve"
    ONCE = "once"
    HISTORY = "history"
    DEMO = "demo"
    CHECK = "check"
    ASSETS = "assets"


class History(Group):
    """What `history` writes."""

    label: Annotated[
        Several[str],
        Written(
            "NAME=VALUE",
            "A label that Prometheus adds when it scrapes, as job=gemini-cli or"
            " instance=127.0.0.1:9742; repeat it for each.",
            ",",
        ),
    ] = ()
    start: Annotated[Moment | None, Written("TIME", "Leave out what was before.")] = None
    end: Annotated[
        Moment | None,
        Written("TIME", "Leave out what came after. Unless given: when the first scrape was."),
    ] = None
    allow_overlap: Annotated[
        Switch,
        Written(SWITCH, "Also write what was scraped already, for another Prometheus."),
    ] = False


class Assets(Group):
    """Where `assets` writes."""

    folder: AbsolutePath


HISTORY_OPTIONS: Final = tuple(options_of("", History))
"""The options of `history`."""
