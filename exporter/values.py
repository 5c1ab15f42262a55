"""How single values of settings are written: times, addresses, host names, paths, days, money.

Each annotated type reads what stands in a flag, a variable or the YAML file, and is written back as
text. What cannot be read is a ValueError that says how to write it.
"""

from __future__ import annotations

import os
import re
from datetime import date, datetime
from decimal import Decimal
from ipaddress import IPv6Address
from pathlib import Path
from typing import Annotated, Final, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, PlainValidator

from .ledger.labels import MAX_LENGTH, clean_label
from .outputs.receiver import endpoint_url

_DURATION: Final = re.compile(
    r"(?:(\d{1,4})h)?(?:(\d{1,6})m(?!s))?(?:(\d{1,8})s)?(?:(\d{1,11})ms)?"
)
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_PAGE_PATH: Final = re.compile("(/[A-Za-z0-9._~-]+)+")
_YEAR: Final = 366 * 86_400.0

LOCAL: Final = "local"
"""The time zone of this machine, where one is asked for by name."""

_T = TypeVar("_T")


class Duration(float):
    """Seconds, more than zero and at most a year, written as `90s`, `1h30m` or `250ms`."""

    @classmethod
    def parse_or_zero(cls, value: object) -> Duration:
        """Return the duration that was written, which may also be none at all, as in `0s`."""
        return cls(0) if str(value).strip() in ("0", "0s") else cls.parse(value)

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


def _host_name(text: str) -> str:
    text = text.strip()
    if not _HOST_NAME.fullmatch(text):
        raise ValueError(
            f"{text!r} is not a host name: write it without scheme and port;"
            " addresses are always allowed"
        )
    return text


def _page_path(text: str) -> str:
    if not _PAGE_PATH.fullmatch(text) or text.startswith("/-/"):
        raise ValueError(
            f"{text!r} is not a path such as /metrics, of letters, digits and ._~-;"
            " / and /-/ are taken"
        )
    return text


def _time_zone(text: str) -> str:
    try:
        # Paths out of the zones' folder are a ValueError, folders in it an OSError.
        if text != LOCAL:
            ZoneInfo(text)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"{text!r} is not a time zone, as in Europe/Berlin or UTC") from None
    return text


def _label(text: str) -> str:
    if clean_label(text) != text:
        raise ValueError(
            f"{text!r} is not a label: 1 to {MAX_LENGTH} characters on one line, no blank ends"
        )
    return text


def _endpoint(text: str) -> str:
    try:
        return endpoint_url(text)
    except ValueError as error:
        raise ValueError(f"{'' if '@' in text else f'{text!r} '}{error}") from None


def _listed(value: object) -> object:
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


def _moment(value: object) -> int:
    if isinstance(value, int):
        return value
    try:
        return round(1000 * datetime.fromisoformat(str(value)).timestamp())
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"{str(value)!r} is not a time: write for example 2026-10-08 or 2026-10-08T12:00:00Z"
        ) from None


def _distinct(values: tuple[_T, ...]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(values))


def _some(values: tuple[_T, ...]) -> tuple[_T, ...]:
    if not values:
        raise ValueError("needs at least one value")
    return values


_Text = PlainSerializer(str, return_type=str)

AbsolutePath = Annotated[Path, PlainValidator(_path), _Text]
Time = Annotated[Duration, PlainValidator(Duration.parse), _Text]
Address = Annotated[ListenAddress, PlainValidator(ListenAddress.parse), _Text]
HostName = Annotated[str, AfterValidator(_host_name)]
Endpoint = Annotated[str, AfterValidator(_endpoint)]
Day = Annotated[date, PlainValidator(_day), _Text]
TimeOrNever = Annotated[Duration, PlainValidator(Duration.parse_or_zero), _Text]
TimeZone = Annotated[str, AfterValidator(_time_zone)]
PagePath = Annotated[str, AfterValidator(_page_path)]
LabelText = Annotated[str, AfterValidator(_label)]
Switch = bool
"""On or off; written as yes or no, true or false, on or off, 1 or 0 where it has a value."""
Moment = Annotated[int, PlainValidator(_moment)]
"""Milliseconds since the epoch; written as an ISO date and time, in this machine's zone."""
Usd = Annotated[Decimal, Field(ge=0, le=1_000_000, decimal_places=6, allow_inf_nan=False)]
Multiplier = Annotated[Decimal, Field(ge=0, le=1000, allow_inf_nan=False)]

Several = Annotated[tuple[_T, ...], BeforeValidator(_listed), AfterValidator(_distinct)]
"""Values without repetitions, in their order; a single one need not stand in a list."""
AtLeastOne = Annotated[Several[_T], AfterValidator(_some)]
