"""Every setting, declared once.

A setting is a field of one of the groups below. Where it stands gives its flag (`--log.level`), its
environment variable (`GEMINI_CLI_EXPORTER_LOG_LEVEL`) and its YAML key (`log: {level: ...}`).
A flag wins over the environment, the environment over the file, the file over the default. A value
that cannot be used is a `ConfigError`, and so is every name that is not known.
"""

from __future__ import annotations

import argparse
import os
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from difflib import get_close_matches
from enum import StrEnum
from ipaddress import IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, NoReturn, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from .logs import Format, Level

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_PREFIX: Final = "GEMINI_CLI_EXPORTER_"
# Kubernetes puts these into every pod beside a service that is called gemini-cli-exporter.
_SERVICE_LINK: Final = re.compile(
    r"SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?"
)
_DURATION: Final = re.compile(
    r"(?:(\d{1,4})h)?(?:(\d{1,6})m(?!s))?(?:(\d{1,8})s)?(?:(\d{1,11})ms)?"
)
_YEAR: Final = 366 * 86_400.0

_Layer = dict[str, dict[str, Any]]
"""Values as they were written in one place: group -> name with dashes -> value."""


class ConfigError(Exception):
    """A setting cannot be used: one line with where it was given, what is wrong and the remedy."""


class Command(StrEnum):
    """What the program is asked to do."""

    SERVE = "serve"
    ONCE = "once"


class ProjectLabel(StrEnum):
    """What the label `project` holds: the short name, the path, or nothing."""

    SLUG = "slug"
    PATH = "path"
    NONE = "none"


class Duration(float):
    """Seconds, more than zero and at most a year, written as `90s`, `1h30m` or `250ms`."""

    @classmethod
    def parse(cls, value: object) -> Duration:
        """Return the duration that was written; raises ValueError with the remedy."""
        if isinstance(value, Duration):
            return value
        text = str(value).strip()
        parts = _DURATION.fullmatch(text)
        if not text or parts is None:
            fault = "has no unit" if re.fullmatch(r"[\d.]+", text) else "is not a duration"
            raise ValueError(f"{text!r} {fault}: write for example 90s, 5m, 1h30m or 250ms")
        hours, minutes, seconds, milliseconds = (int(part or 0) for part in parts.groups())
        duration = cls(hours * 3600 + minutes * 60 + seconds + milliseconds / 1000)
        if not 0 < duration <= _YEAR:
            raise ValueError(f"{text!r} is not more than 0s and at most {cls(_YEAR)}")
        return duration

    def __str__(self) -> str:
        text, rest = "", round(self * 1000)
        for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
            count, rest = divmod(rest, size)
            text += f"{count}{unit}" if count else ""
        return text or "0s"


class ListenAddress(NamedTuple):
    """Where to listen; an empty host stands for all addresses, port 0 for any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, value: object) -> ListenAddress:
        """Return the address that was written as HOST:PORT; raises ValueError with the remedy."""
        if isinstance(value, ListenAddress):
            return value
        text = str(value).strip()
        parts = re.fullmatch(r"(?:\[(.+)]|([A-Za-z0-9._-]*)):([0-9]{1,5})", text)
        if parts is None or int(parts[3]) > 65535 or (parts[1] and not _is_ipv6(parts[1])):
            raise ValueError(f"{text!r} is not HOST:PORT, as in 127.0.0.1:9742 or [::1]:9742")
        return cls(parts[1] or parts[2], int(parts[3]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _is_ipv6(text: str) -> bool:
    try:
        return bool(IPv6Address(text))
    except ValueError:
        return False


def _path(value: object) -> Path:
    text = str(value) if isinstance(value, str | Path) else ""
    if not text.strip() or "\0" in text:
        raise ValueError(f"{value!r} is not a path")
    expanded = os.path.expanduser(text)
    if expanded.startswith("~"):
        raise ValueError(f"the home folder in {text!r} is not known: write the whole path")
    return Path(os.path.abspath(expanded))


def _listed(value: object) -> object:
    if value == []:
        raise ValueError("needs at least one value")
    return [value] if isinstance(value, str) else value


def _day(value: object) -> date:
    # Stricter than pydantic, which takes 20261008 for seconds since 1970.
    try:
        if isinstance(value, str):
            return date.fromisoformat(value)
    except ValueError:
        pass
    if not isinstance(value, date) or isinstance(value, datetime):
        raise ValueError(f"{str(value)!r} is not a date: write for example 2026-10-08")
    return value


class Written(NamedTuple):
    """Marks a setting that has a flag and a variable, and says how it is written.

    `separator` stands between several values in the variable; None: there is only one value.
    """

    placeholder: str
    help: str
    separator: str | None = None


_T = TypeVar("_T")
_Text = PlainSerializer(str, return_type=str)
_AbsolutePath = Annotated[Path, PlainValidator(_path), _Text]
_Time = Annotated[Duration, PlainValidator(Duration.parse), _Text]
_Address = Annotated[ListenAddress, PlainValidator(ListenAddress.parse), _Text]
_Day = Annotated[date, PlainValidator(_day), _Text]
_Usd = Annotated[Decimal, Field(ge=0, le=1_000_000, decimal_places=6, allow_inf_nan=False)]
_Multiplier = Annotated[Decimal, Field(ge=0, le=1000, allow_inf_nan=False)]
_Several = Annotated[
    tuple[_T, ...],
    BeforeValidator(_listed),
    AfterValidator(lambda several: tuple(dict.fromkeys(several))),
]


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
        _AbsolutePath | None,
        Written("FILE", "A YAML file with settings; its keys nest as the flags do."),
    ] = None


class Transcripts(_Group):
    """What is read."""

    root: Annotated[
        _Several[_AbsolutePath],
        Written(
            "DIR",
            "A folder that holds Gemini CLI's tmp/; may be repeated. Unless given: $GEMINI_DIR,"
            " else $GEMINI_CLI_HOME/.gemini, else ~/.gemini; on macOS also ~/.cache/.gemini.",
            os.pathsep,
        ),
    ]
    rescan_interval: Annotated[
        _Time,
        Written("TIME", "The longest time between two full looks while file events work."),
    ] = Duration(30)


class Ledger(_Group):
    """Where the counts are kept."""

    path: Annotated[
        _AbsolutePath,
        Written("FILE", "The database that remembers what was counted; on a local disk."),
    ]


class Web(_Group):
    """Where scrapes are answered."""

    listen_address: Annotated[
        _Several[_Address],
        Written(
            "HOST:PORT", "Where to answer scrapes; may be repeated. :9742 is all addresses.", ","
        ),
    ] = (ListenAddress("127.0.0.1", 9742),)


class Labels(_Group):
    """What the labels hold."""

    project: Annotated[
        ProjectLabel,
        Written("|".join(ProjectLabel), "The label project: short name, whole path, or nothing."),
    ] = ProjectLabel.SLUG


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
    input: _Usd
    cached: _Usd | None = None
    output: _Usd


class ModelPrice(_Group):
    """A user's own price of one model, in USD per million tokens.

    Either `input` and `output`, or `price_as` (the model whose published price applies), or only a
    multiplier of the published price. `cached` None means that cached tokens cost the input price.
    It holds from `from_` (inclusive) to `to` (exclusive), both UTC; None is without limit.
    """

    input: _Usd | None = None
    cached: _Usd | None = None
    output: _Usd | None = None
    above: PriceAbove | None = None
    price_as: Annotated[str, Field(min_length=1)] | None = None
    multiplier: _Multiplier = Decimal(1)
    from_: _Day | None = None
    to: _Day | None = None

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

    multiplier: _Multiplier = Decimal(1)
    models: Mapping[str, ModelPrice] = Field(default_factory=dict)


class Settings(BaseSettings):
    """All settings in force; nothing in them changes."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    config: Config = Config()
    transcripts: Transcripts
    ledger: Ledger
    web: Web = Web()
    labels: Labels = Labels()
    log: Log = Log()
    pricing: Pricing = Pricing()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **__: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read nothing unasked: `load` alone looks at the surroundings."""
        return (init_settings,)


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
        return f"{_PREFIX}{self.group}_{self.name}".replace("-", "_").upper()


def _options() -> Iterator[Option]:
    for group, members in _GROUPS.items():
        for field in members.model_fields.values():
            for mark in field.metadata:
                if isinstance(mark, Written):
                    yield Option(group, str(field.alias), mark, field.default)


_GROUPS: Final[dict[str, type[_Group]]] = {
    name: field.annotation
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, _Group)
}
OPTIONS: Final = tuple(_options())


def load(
    argv: Sequence[str], environ: Mapping[str, str], platform: str
) -> tuple[Command, Settings]:
    """Return what is asked for and the settings in force; raises ConfigError.

    `platform` is spelled as `sys.platform` is. In a path, `~` is the home folder of this process; a
    relative path starts at its working directory.
    """
    command, flags = _read_flags(argv)
    variables = _read_variables(environ)
    path = (variables.get("config", {}) | flags.get("config", {})).get("file", "")
    file = _read_file(path)
    layers = (flags, variables, file, defaults(environ, platform))
    try:
        sources = tuple(InitSettingsSource(Settings, layer) for layer in layers)
        # The type checker knows the fields only.
        return command, Settings(_build_sources=(sources, {}))  # type: ignore[call-arg]
    except ValidationError as error:
        fault = error.errors()[0]
    keys = [key for key in fault["loc"] if isinstance(key, str)]
    option = next((option for option in OPTIONS if [*option[:2]] == keys[:2]), None)
    flag, variable = (option.flag, option.variable) if option else ("", "")
    places = (flag, variable, f"{path}: {'.'.join(keys)}", f"the default of {flag}")
    given = (keys[1] in layer.get(keys[0], {}) for layer in layers)
    place = next(place for place, here in zip(places, given, strict=True) if here)
    raise ConfigError(f"{place}: {_complaint(fault)}")


def defaults(environ: Mapping[str, str], platform: str) -> dict[str, dict[str, Any]]:
    """Return the defaults that depend on the machine: group -> name -> text, `~` not expanded."""
    state = environ.get("XDG_STATE_HOME", "")
    if platform == "win32":
        state = environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif platform == "darwin":
        state = "~/Library/Application Support"
    elif not os.path.isabs(state):  # The XDG specification has a relative path ignored.
        state = "~/.local/state"
    parent = environ.get("GEMINI_CLI_HOME") or "~"
    roots = [environ.get("GEMINI_DIR") or os.path.join(parent, ".gemini")]
    if platform == "darwin":
        roots.append("~/.cache/.gemini")
    path = os.path.join(state, "gemini-cli-exporter", "ledger.db")
    return {"transcripts": {"root": roots}, "ledger": {"path": path}}


def describe(settings: Settings) -> dict[str, object]:
    """Return the settings in force as dotted names and plain values, for a log record."""

    def flat(prefix: str, values: Mapping[str, object]) -> Iterator[tuple[str, object]]:
        for name, value in values.items():
            if isinstance(value, dict):
                yield from flat(f"{prefix}{name}.", value)
            else:
                yield f"{prefix}{name}", value

    return dict(flat("", settings.model_dump(mode="json", by_alias=True, exclude_none=True)))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))


def _read_flags(argv: Sequence[str]) -> tuple[Command, _Layer]:
    parser = _Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for option in OPTIONS:
        action = "append" if option.written.separator else "store"
        parser.add_argument(option.flag, action=action, dest=option.variable)
    # Words are left over instead of declared, so that they may stand before or after the options.
    given, words = parser.parse_known_args(argv)
    for word in words:
        if word.startswith("-"):
            flag = word.partition("=")[0]
            hint = _closest(flag, [option.flag for option in OPTIONS])
            raise ConfigError(f"{flag}: unknown option{hint or '; --help lists all'}")
    if len(words) > 1:
        raise ConfigError(f"{' '.join(words)!r}: give one command only: {', '.join(Command)}")
    if words and words[0] not in [*Command]:
        hint = _closest(words[0], Command)
        raise ConfigError(f"{words[0]!r}: unknown command{hint}; there are {', '.join(Command)}")
    layer: _Layer = {}
    for option in OPTIONS:
        if option.variable in given:
            layer.setdefault(option.group, {})[option.name] = getattr(given, option.variable)
    return Command(words[0]) if words else Command.SERVE, layer


def _read_variables(environ: Mapping[str, str]) -> _Layer:
    known = {option.variable: option for option in OPTIONS}
    layer: _Layer = {}
    for variable, value in environ.items():
        suffix = variable.removeprefix(_PREFIX)
        if suffix == variable or _SERVICE_LINK.fullmatch(suffix):
            continue
        option = known.get(variable)
        if option is None:
            hint = _closest(variable, known, _PREFIX)
            raise ConfigError(f"{variable}: unknown variable{hint or '; --help lists all'}")
        # Unit files and compose files write an empty value for "not set".
        if value:
            separator = option.written.separator
            written = [part for part in value.split(separator) if part] if separator else value
            layer.setdefault(option.group, {})[option.name] = written
    return layer


def _read_file(path: str) -> _Layer:
    if not path:
        return {}
    import yaml

    try:
        with open(os.path.expanduser(path), "rb") as file:
            document = yaml.safe_load(file) or {}
    except OSError as error:
        raise ConfigError(f"config.file {path}: cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else path
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{place}: {problem}") from None
    layer: _Layer = {}
    groups = [group for group in _GROUPS if group != "config"]
    for group, values in _mapping(document, path).items():
        if group not in groups:
            raise ConfigError(f"{path}: {group}: unknown key{_closest(group, groups)}")
        # A key without a value is one whose value was commented out.
        members = _mapping({} if values is None else values, f"{path}: {group}")
        layer[group] = {
            name.replace("_", "-"): value for name, value in members.items() if value is not None
        }
    return layer


def _mapping(value: object, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{place}: must hold settings by name, as in log: {{level: debug}}")
    return {str(key): item for key, item in value.items()}


def _complaint(fault: ErrorDetails) -> str:
    """Return what is wrong with a value and how it must be, as the end of a sentence."""
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    if fault["type"] == "extra_forbidden":
        groups: list[type[BaseModel]] = [*_GROUPS.values(), ModelPrice, PriceAbove]
        known = {str(field.alias) for group in groups for field in group.model_fields.values()}
        return f"unknown key{_closest(str(fault['loc'][-1]), known)}"
    if fault["type"] == "missing":
        return "is missing"
    return f"{re.sub('^.* should', 'must', fault['msg'])}, not {reprlib.repr(fault['input'])}"


def _closest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return the question whether a known word was meant; a common prefix makes none alike."""
    found = get_close_matches(word.removeprefix(prefix), [k.removeprefix(prefix) for k in known], 1)
    return f", did you mean {prefix}{found[0]}?" if found else ""
