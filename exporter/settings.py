"""Every setting, declared once.

A setting is a field of one of the groups below. Where it stands gives its flag (`--log.level`), its
environment variable (`GEMINI_CLI_EXPORTER_LOG_LEVEL`) and its YAML key (`log: {level: ...}`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import chain
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from .declaring import SWITCH, Group, Written, options_of
from .ledger.labels import ProjectLabel
from .logs import Format, Level
from .prices import Pricing
from .values import (
    LOCAL,
    AbsolutePath,
    Address,
    AtLeastOne,
    Duration,
    Endpoint,
    HostName,
    LabelText,
    ListenAddress,
    PagePath,
    Several,
    Switch,
    Time,
    TimeOrNever,
    TimeZone,
    Usd,
)


class Config(Group):
    """Where the settings come from."""

    file: Annotated[
        AbsolutePath | None,
        Written("FILE", "A YAML file with settings; its keys nest as the flags do."),
    ] = None


class Transcripts(Group):
    """What is read."""

    root: Annotated[
        AtLeastOne[AbsolutePath],
        Written(
            "DIR",
            "A folder that holds Gemini CLI's tmp/; may be repeated. Unless given: $GEMINI_DIR,"
            " else $GEMINI_CLI_HOME/.gemini, else ~/.gemini; on macOS also ~/.cache/.gemini."
            " A pattern such as '/home/*/.gemini' stands for all that match, now or later.",
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


class Watch(Group):
    """How changes are noticed."""

    mode: Annotated[
        WatchMode,
        Written(
            "|".join(WatchMode),
            "File events, or a look every 5s; auto uses events except on network and virtual file"
            " systems, where others' changes raise none.",
        ),
    ] = WatchMode.AUTO


class Ledger(Group):
    """Where the counts are kept."""

    path: Annotated[
        AbsolutePath,
        Written("FILE", "The database that remembers what was counted; on a local disk."),
    ]


class Web(Group):
    """Where scrapes are answered."""

    enabled: Annotated[
        Switch, Written(SWITCH, "Answer scrapes; --no-web where metrics are only pushed.")
    ] = True
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


class Otlp(Group):
    """What is pushed; the standard OTEL_* variables say how."""

    enabled: Annotated[
        Switch | None,
        Written(
            SWITCH,
            "Push metrics by OTLP, as the standard variables OTEL_EXPORTER_OTLP_*,"
            " OTEL_METRIC_EXPORT_INTERVAL and OTEL_RESOURCE_ATTRIBUTES say. Also switched on by"
            " --otlp.endpoint, and never by a variable of OpenTelemetry.",
        ),
    ] = None
    endpoint: Annotated[
        Endpoint | None,
        Written(
            "URL",
            "Where to push, instead of OTEL_EXPORTER_OTLP_ENDPOINT; /v1/metrics is added for HTTP.",
        ),
    ] = None
    genai: Annotated[
        Switch,
        Written(
            SWITCH,
            "Push token counters by OpenTelemetry's GenAI conventions too; these may still change.",
        ),
    ] = False

    @property
    def on(self) -> bool:
        """Whether to push."""
        return self.endpoint is not None if self.enabled is None else self.enabled


class Labels(Group):
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


class Spendable(Group):
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
    projects: Mapping[LabelText, Spendable] = Field(default_factory=dict)
    """Budgets by the value of the label project."""


class Log(Group):
    """What is written to standard error."""

    level: Annotated[Level, Written("|".join(Level), "The least urgent log records to write.")] = (
        Level.INFO
    )
    format: Annotated[Format, Written("|".join(Format), "How each log record is written.")] = (
        Format.LOGFMT
    )


class Settings(BaseModel):
    """All settings in force; nothing in them changes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: Config = Config()
    transcripts: Transcripts
    watch: Watch = Watch()
    ledger: Ledger
    web: Web = Web()
    otlp: Otlp = Otlp()
    labels: Labels = Labels()
    budget: Budget = Budget()
    log: Log = Log()
    pricing: Pricing = Pricing()


GROUPS: Final[dict[str, type[Group]]] = {
    name: field.annotation
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Group)
}
"""The settings of each group: the first part of a flag, and the outer key in the YAML file."""
OPTIONS: Final = tuple(chain.from_iterable(map(options_of, GROUPS, GROUPS.values())))
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
