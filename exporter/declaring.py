"""How a setting is declared: a field of a group, marked with how it is written and what it does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict

PREFIX: Final = "GEMINI_CLI_EXPORTER_"
"""Of every environment variable that holds a setting."""

ENABLED: Final = "enabled"
"""The name of the switch that stands for its whole group, as in `--otlp`."""

SWITCH: Final = ""
"""The placeholder of a setting that is on or off: its flag takes no value, `--no-...` is off."""


class Written(NamedTuple):
    """Marks a setting that has a flag and a variable, and says how it is written.

    `separator` stands between several values in the variable; None: there is only one value.
    """

    placeholder: str
    help: str
    separator: str | None = None


class Group(BaseModel):
    """Settings that belong together; nothing in them changes."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=lambda name: name.rstrip("_").replace("_", "-"),
        validate_by_name=True,
        validate_by_alias=True,
    )


class Option(NamedTuple):
    """A setting that has a flag, and a variable unless its group is empty."""

    group: str
    name: str
    written: Written
    default: object

    @property
    def path(self) -> str:
        """Group and name, as in `web.listen-address`; the switch of a group is its name."""
        if self.name == ENABLED:
            return self.group
        return f"{self.group}.{self.name}" if self.group else self.name

    @property
    def flag(self) -> str:
        """The flag, as in `--web.listen-address`."""
        return f"--{self.path}"

    @property
    def variable(self) -> str:
        """The environment variable, as in `GEMINI_CLI_EXPORTER_WEB_LISTEN_ADDRESS`."""
        return re.sub("[-.]", "_", PREFIX + self.path).upper()

    @property
    def synopsis(self) -> str:
        """How it is written on the command line."""
        if self.is_switch:
            return f"--[no-]{self.path}"
        return f"{self.flag} {self.written.placeholder}"

    @property
    def is_switch(self) -> bool:
        """Whether the flag takes no value."""
        return self.written.placeholder == SWITCH


def options_of(group: str, members: type[Group]) -> Iterator[Option]:
    """Yield the settings of a group that have a flag, in their order."""
    for field in members.model_fields.values():
        for mark in field.metadata:
            if isinstance(mark, Written):
                yield Option(group, str(field.alias), mark, field.default)
