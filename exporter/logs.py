"""Logging: one record is one line on standard error, in logfmt or JSON.

Every module logs through `logging.getLogger(__name__)`. What a reader may want to search by goes
into fields, not into the message: `log.info("scan finished", extra={"fields": {"files": 3}})`.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final


class Level(StrEnum):
    """The least urgent records that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class Format(StrEnum):
    """How a record is written."""

    LOGFMT = "logfmt"
    JSON = "json"


_NUMBERS: Final = {
    Level.DEBUG: logging.DEBUG,
    Level.INFO: logging.INFO,
    Level.WARN: logging.WARNING,
    Level.ERROR: logging.ERROR,
}
_NAMES: Final = {"WARNING": "warn", "CRITICAL": "error"}
_BARE: Final = re.compile(r"[\w!#$%&()*+,\-./:;<>?@\[\]^{|}~]+")
_NO_KEY: Final = re.compile(r"[^\w.\-/:]+")
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def setup(level: Level, style: Format) -> None:
    """Send all records from `level` on to standard error, warnings of libraries included.

    Handlers that were installed before are removed, so a second call replaces the first.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(style))
    logging.basicConfig(level=_NUMBERS[level], handlers=[handler], force=True)
    logging.captureWarnings(True)


class LineFormatter(logging.Formatter):
    """Writes a record as one line, whatever its message and its fields hold.

    An exception becomes the field `error`, its type and message; the traceback is the field
    `traceback`, and only where debug records are written.
    """

    def __init__(self, style: Format) -> None:
        super().__init__()
        self._write = _json_writer() if style is Format.JSON else _write_logfmt

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line without its end."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        values: dict[str, object] = {
            "ts": time.replace("+00:00", "Z"),
            "level": _NAMES.get(record.levelname, record.levelname.lower()),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        values |= getattr(record, "fields", {})
        if record.exc_info and (exception := record.exc_info[1]):
            values["error"] = f"{type(exception).__name__}: {exception}".removesuffix(": ")
            if logging.getLogger().isEnabledFor(logging.DEBUG):
                values["traceback"] = self.formatException(record.exc_info)
        return self._write(values)


def _write_logfmt(values: Mapping[str, object]) -> str:
    return " ".join(f"{_NO_KEY.sub('_', key)}={_logfmt(value)}" for key, value in values.items())


def _logfmt(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    if _BARE.fullmatch(text) and text.isprintable():
        return text
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    return f"\\u{ord(char):04x}" if ord(char) <= 0xFFFF else f"\\U{ord(char):08x}"


def _json_writer() -> Callable[[Mapping[str, object]], str]:
    # Only who asks for JSON pays for the import.
    import orjson

    return lambda values: orjson.dumps(_json(values)).decode()


def _json(value: object) -> object:
    """Return the value with only what orjson takes: no lone surrogates, no huge integers."""
    if isinstance(value, Mapping):
        return {str(_json(str(key))): _json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if type(value) is float or (type(value) is int and -(2**63) <= value < 2**63):
        return value
    return str(value).encode("utf-8", "backslashreplace").decode()
