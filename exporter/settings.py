"""Every setting, declared once.

A setting is a field of one of the groups below. Where it stands gives its flag (`--log.level`), its
environment variable (`GEMINI_CLI_EXPORTER_LOG_LEVEL`) and its YAML key (`log: {level: ...}`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Final, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .ledger.labels import ProjectLabel
from .logs import Format, Level
from .values import (
    LOCAL,
    AbsolutePath,
    Address,
    AtLeastOne,
    Day,
    Duration,
    HostName,
    LabelText,
    ListenAddress,
    Multiplier,
    PagePath,
    Several,
    Switch,
    Time,
    TimeOrNever,
    TimeZone,
    Usd,
)

PREFIX: Final = "GEMINI_CLI_EXPORTER_"
"""Of every environment variable that holds a setting."""

SWITCH: Final = ""
"""The placeholder of a setting that is on or off: its flag takes no value, `--no-...` is off."""


class Written(NamedTuple):
    """Marks a setting that has a flag and a variable, and says how it is written.

    `separator` stands between several values in the variable; None: there is only one value.
    """

    placeholder: str
    help: str
    separator: str | None = None


class _Group(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=lambda name: name.rstrip("_").replace("_", "-"),
        validate_by_name=True,
        validate_by_alias=True,
    )


class Config(_Group):
    """Where the settings come from."""

    file: Annotated[
        AbsolutePath | None,
        Written("FILE", "A YAML file with settings; its keys nest as the flags do."),
    ] = None


class Transcripts(_Group):
    """What is read."""

    root: Annotated[
        AtLeastOne[AbsolutePath],
        Written(
            "DIR",
            "A folder that holds Gemini CLI's tmp/; may be repeated. Unless given: $GEMINI_DIR,"
            " else $GEMINI_CLI_HOME/.gemini, else ~/.gemini; on macOS also ~/.cache/.gemini.",
            os.pathsep,
        ),
    ]
    rescan_interval: Annotated[
        Time,
        Written("TIME", "The longest time between two full looks while file events work."),
    ] = Duration(30)


class WatchMode(StrEnum):
    """How changes are noticed."""

    AUTO = "auto"
    EVENTS = "events"
    POLL = "poll"


class Watch(_Group):
    """How changes are noticed."""

    mode: Annotated[
        WatchMode,
        Written(
            "|".join(WatchMode),
            "File events, or a look every 5s; auto uses events except on network and virtual file"
            " systems, where others' changes raise none.",
        ),
    ] = WatchMode.AUTO


class Ledger(_Group):
    """Where the counts are kept."""

    path: Annotated[
        AbsolutePath,
        Written("FILE", "The database that remembers what was counted; on a local disk."),
    ]


class Web(_Group):
    """Where scrapes are answered."""

    listen_address: Annotated[
        AtLeastOne[Address],
        Written(
            "HOST:PORT", "Where to answer scrapes; may be repeated. :9742 is all addresses.", ","
        ),
    ] = (ListenAddress("127.0.0.1", 9742),)
    allowed_host: Annotated[
        Several[HostName],
        Written(
            "NAME",
            "A host name under which the pages may be asked for, beside localhost and this"
            " machine's own; may be repeated. Addresses are always allowed.",
            ",",
        ),
    ] = ()
    config_file: Annotated[
        AbsolutePath | None,
        Field(alias="config.file"),
        Written(
            "FILE", "TLS, basic auth and headers, in the format of the Prometheus exporter-toolkit."
        ),
    ] = None
    telemetry_path: Annotated[PagePath, Written("PATH", "Where the metrics are.")] = "/metrics"
    zero_first_hold: Annotated[
        TimeOrNever,
        Written(
            "TIME",
            "How long scrapers see 0 for a series that is new, so that its first value is an"
            " increase to them; 1.5 times the scrape interval or more. 0s switches it off.",
        ),
    ] = Duration(90)
    created_timestamps: Annotated[
        Switch,
        Written(
            SWITCH,
            "Add _created to OpenMetrics; only for a Prometheus that runs with"
            " created-timestamp-zero-ingestion.",
        ),
    ] = False


class Labels(_Group):
    """What the labels hold."""

    project: Annotated[
        ProjectLabel,
        Written("|".join(ProjectLabel), "The label project: short name, whole path, or nothing."),
    ] = ProjectLabel.SLUG
    owner: Annotated[
        Switch,
        Written(
            SWITCH,
            "Add the label owner: the folder that holds the transcripts' root, as in"
            " /home/OWNER/.gemini.",
        ),
    ] = False
    projects: Mapping[str, LabelText] = Field(default_factory=dict)
    """Label by short name or path of a project: two with one label are counted together."""


class Spendable(_Group):
    """What may be spent, in USD; None is without limit."""

    day: Annotated[Usd | None, Written("USD", "What may be spent in a day.")] = None
    week: Annotated[Usd | None, Written("USD", "What may be spent in a week, from Monday.")] = None
    month: Annotated[Usd | None, Written("USD", "What may be spent in a month.")] = None


class Budget(Spendable):
    """What may be spent in all and by each project, and when a day begins."""

    timezone: Annotated[
        TimeZone,
        Written("ZONE", "Where days begin, as in Europe/Berlin; local is this machine's zone."),
    ] = LOCAL
    projects: Mapping[str, Spendable] = Field(default_factory=dict)
    """Budgets by the value of the label project."""


class Log(_Group):
    """What is written to standard error."""

    level: Annotated[Level, Written("|".join(Level), "The least urgent log records to write.")] = (
        Level.INFO
    )
    format: Annotated[Format, Written("|".join(Format), "How each log record is written.")] = (
        Format.LOGFMT
    )


class PriceAbove(_Group):
    """USD per million tokens of a turn whose prompt has more than `tokens` tokens."""

    tokens: Annotated[int, Field(strict=True, ge=1, le=100_000_000)]
    input: Usd
    cached: Usd | None = None
    output: Usd


class ModelPrice(_Group):
    """A user's own price of one model, in USD per million tokens.

    Either `input` and `output`, or `price_as` (the model whose published price applies), or only a
    multiplier of the published price. `cached` None means that cached tokens cost the input price.
    It holds from `from_` (inclusive) to `to` (exclusive), both UTC; None is without limit.
    """

    input: Usd | None = None
    cached: Usd | None = None
    output: Usd | None = None
    above: PriceAbove | None = None
    price_as: Annotated[str, Field(min_length=1)] | None = None
    multiplier: Multiplier = Decimal(1)
    from_: Day | None = None
    to: Day | None = None

    @model_validator(mode="after")
    def _agree(self) -> Self:
        own = self.model_fields_set & {"input", "cached", "output", "above"}
        if own and self.price_as is not None:
            raise ValueError(f"price-as and {min(own)} exclude each other: keep one of them")
        if own and (self.input is None or self.output is None):
            raise ValueError("needs both input and output")
        if not own and self.price_as is None and "multiplier" not in self.model_fields_set:
            raise ValueError("needs input and output, or price-as, or multiplier")
        if self.from_ is not None and self.to is not None and self.from_ >= self.to:
            raise ValueError("from must be before to, the first day that is out")
        return self


class Pricing(_Group):
    """Own prices; only the YAML file can hold them."""

    multiplier: Multiplier = Decimal(1)
    models: Mapping[str, ModelPrice] = Field(default_factory=dict)


class Settings(BaseModel):
    """All settings in force; nothing in them changes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: Config = Config()
    transcripts: Transcripts
    watch: Watch = Watch()
    ledger: Ledger
    web: Web = Web()
    labels: Labels = Labels()
    budget: Budget = Budget()
    log: Log = Log()
    pricing: Pricing = Pricing()


class Option(NamedTuple):
    """A setting that has a flag and a variable."""

    group: str
    name: str
    written: Written
    default: object

    @property
    def flag(self) -> str:
        """The flag, as in `--web.listen-address`."""
        return f"--{self.group}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable, as in `GEMINI_CLI_EXPORTER_WEB_LISTEN_ADDRESS`."""
        return re.sub("[-.]", "_", f"{PREFIX}{self.group}_{self.name}").upper()

    @property
    def synopsis(self) -> str:
        """How it is written on the command line."""
        if self.is_switch:
            return f"--[no-]{self.group}.{self.name}"
        return f"{self.flag} {self.written.placeholder}"

    @property
    def is_switch(self) -> bool:
        """Whether the flag takes no value."""
        return self.written.placeholder == SWITCH


def _options() -> Iterator[Option]:
    for group, members in GROUPS.items():
        for field in members.model_fields.values():
            for mark in field.metadata:
                if isinstance(mark, Written):
                    yield Option(group, str(field.alias), mark, field.default)


GROUPS: Final[dict[str, type[_Group]]] = {
    name: field.annotation
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, _Group)
}
"""The settings of each group: the first part of a flag, and the outer key in the YAML file."""
OPTIONS: Final = tuple(_options())
"""All that can be set by a flag and a variable, in the order of the help text."""


def describe(settings: Settings) -> dict[str, object]:
    """Return the settings in force as dotted names and plain values, for a log record."""

    def flat(prefix: str, values: Mapping[str, object]) -> Iterator[tuple[str, object]]:
        for name, value in values.items():
            if isinstance(value, dict):
                yield from flat(f"{prefix}{name}.", value)
            else:
                yield f"{prefix}{name}", value

    return dict(flat("", settings.model_dump(mode="json", by_alias=True, exclude_none=True)))
