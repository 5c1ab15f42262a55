"""The web configuration file: TLS, basic auth and headers, in the exporter-toolkit's format.

https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md describes it.
What is not supported here is refused, never ignored.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from . import tls

logger = logging.getLogger(__name__)

_TLS_KEYS: Final = "cert_file", "key_file", "client_ca_file", "client_auth_type", "min_version"
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("tls_server_config", "http_server_config", "basic_auth_users"),
    "tls_server_config": _TLS_KEYS,
    "http_server_config": ("headers",),
}
_HEADERS: Final[Mapping[str, tuple[str, ...]]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
}
"""The headers that may be set; those with a list take only its values."""

_NOTHING: Final[tuple[object, ...]] = (None, "", {})
"""What a file or a key without contents is read as."""

_HASH: Final = re.compile(r"\$2[aby]\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}")
_VISIBLE: Final = re.compile(r"[\x20-\x7e]+")

_Stamp = tuple[int, ...] | None
_Stamps = dict[str, _Stamp]


class WebConfigError(Exception):
    """The file cannot be used; the message is one line with file, key and remedy."""

    def __init__(self, line: str, stamps: _Stamps) -> None:
        super().__init__(line)
        self.stamps = stamps


@dataclass(frozen=True, slots=True)
class WebConfig:
    """What a web configuration file says.

    `tls` is None where plain HTTP is spoken. `headers` are lower-case names and values, `users`
    bcrypt hashes by name. `stamps` tell whether a file has changed since it was read.
    """

    path: Path
    tls: ssl.SSLContext | None
    headers: tuple[tuple[bytes, bytes], ...]
    users: Mapping[str, bytes]
    stamps: _Stamps

    @property
    def verifies_clients(self) -> bool:
        """Whether a client needs a certificate."""
        return self.tls is not None and self.tls.verify_mode is ssl.CERT_REQUIRED

    @property
    def authenticates(self) -> bool:
        """Whether a client must show who it is."""
        return bool(self.users) or self.verifies_clients


def load(path: Path) -> WebConfig:
    """Read a web configuration file and the certificates it names; raises WebConfigError.

    Relative paths in it start at its own folder.
    """
    source = _Source(path)
    document = _Section(source, "", source.document())
    section = document.section("tls_server_config")
    return WebConfig(
        path=path,
        tls=None if section is None else _tls(source, section),
        headers=_headers(document.section("http_server_config")),
        users=_users(document.section("basic_auth_users")),
        stamps=source.stamps,
    )


class LiveConfig:
    """The configuration in force: read again when a file changed, kept when that fails."""

    def __init__(self, config: WebConfig) -> None:
        self._config = config
        self._stamps = config.stamps
        self._complaint = ""

    def current(self) -> WebConfig:
        """Return what holds now; a few calls of stat unless something changed.

        A reading never takes TLS or authentication away. A file that is just being written may
        look as if it did, and that must not open the door.
        """
        if all(_stamp(path) == stamp for path, stamp in self._stamps.items()):
            return self._config
        try:
            new = load(self._config.path)
            self._stamps = new.stamps
            self._refuse_less(new)
        except WebConfigError as error:
            self._stamps = error.stamps
            if str(error) != self._complaint:
                self._complaint = str(error)
                fields = {"error": self._complaint}
                logger.error("the web configuration stays as it was", extra={"fields": fields})
        else:
            self._config = new
            self._complaint = ""
            fields = {"file": str(new.path)}
            logger.info("the web configuration was read again", extra={"fields": fields})
        return self._config

    def _refuse_less(self, new: WebConfig) -> None:
        old = self._config
        for key, had, has in (
            ("tls_server_config", old.tls is not None, new.tls is not None),
            ("tls_server_config.client_auth_type", old.verifies_clients, new.verifies_clients),
            ("basic_auth_users", bool(old.users), bool(new.users)),
        ):
            if had and not has:
                line = f"{old.path}: {key}: is gone; restart the exporter to go without"
                raise WebConfigError(line, new.stamps)


class _Source:
    """The file and what it names: each is stamped before it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.stamps: _Stamps = {}

    def error(self, key: str, problem: str) -> WebConfigError:
        place = f"{self._path}: {key}" if key else str(self._path)
        return WebConfigError(f"{place}: {problem}", self.stamps)

    def document(self) -> object:
        import yaml

        try:
            # All scalars stay the texts that they are in the file: nothing here is anything else.
            return yaml.load(self._read("", str(self._path)), yaml.BaseLoader)
        except RecursionError:
            raise self.error("", "is not YAML: nested too deeply") from None
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f" in line {mark.line + 1}" if mark else ""
            problem = getattr(error, "problem", None) or "unreadable text"
            raise self.error("", f"is not YAML: {problem}{where}") from None

    def named(self, key: str, name: str) -> tuple[str, bytes]:
        """Return the path and the bytes of a file that the key names."""
        path = os.path.join(self._path.parent, name)
        return path, self._read(key, path)

    def _read(self, key: str, path: str) -> bytes:
        self.stamps[path] = _stamp(path)
        try:
            with open(path, "rb") as file:
                return file.read()
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            reason = (getattr(error, "strerror", None) or str(error)).lower()
            what = f"{path}: " if key else ""
            hint = "give the path of a file that the exporter may read"
            raise self.error(key, f"{what}{reason}; {hint}") from None


class _Section:
    """A mapping of the file whose keys are known, except where any may stand."""

    def __init__(self, source: _Source, place: str, value: object) -> None:
        self._source = source
        self._place = place
        self.values: dict[str, Any] = {}
        if value in _NOTHING:
            return
        if not isinstance(value, dict):
            raise source.error(place, "must hold keys and values")
        for key, held in value.items():
            if place in _KEYS and key not in _KEYS[place]:
                known = ", ".join(_KEYS[place])
                raise self.error(key, f"is not supported; remove it, there are {known}")
            self.values[key] = held

    def error(self, key: str, problem: str) -> WebConfigError:
        return self._source.error(f"{self._place}.{key}" if self._place else key, problem)

    def section(self, key: str) -> _Section | None:
        """Return the section of that name, or None where it is missing or holds nothing."""
        if self.values.get(key) in _NOTHING:
            return None
        return _Section(self._source, f"{self._place}.{key}".lstrip("."), self.values[key])

    def text(self, key: str) -> str:
        """Return a text; an empty one where it is missing."""
        value = self.values.get(key, "")
        if not isinstance(value, str):
            raise self.error(key, "must be a text")
        return value


def _tls(source: _Source, section: _Section) -> ssl.SSLContext:
    pem: dict[str, tuple[str, bytes]] = {}
    for key in ("cert_file", "key_file", "client_ca_file"):
        if name := section.text(key):
            pem[key] = source.named(f"tls_server_config.{key}", name)
        elif key != "client_ca_file":
            raise section.error(key, "is missing; name a PEM file")
    try:
        return tls.server_context(
            pem, section.text("client_auth_type"), section.text("min_version")
        )
    except tls.TlsError as error:
        raise section.error(error.key, str(error)) from None


def _headers(section: _Section | None) -> tuple[tuple[bytes, bytes], ...]:
    headers = section.section("headers") if section is not None else None
    if headers is None:
        return ()
    found = []
    for name in headers.values:
        if name not in _HEADERS:
            raise headers.error(name, f"cannot be set; there are {', '.join(_HEADERS)}")
        value, values = headers.text(name), _HEADERS[name]
        if not value:
            continue
        if values and value not in values:
            raise headers.error(name, f"must be {' or '.join(values)}")
        if not _VISIBLE.fullmatch(value):
            raise headers.error(name, "must be one line of ASCII")
        if name != "X-Content-Type-Options":  # every answer has it
            found.append((name.lower().encode(), value.encode()))
    return tuple(found)


def _users(section: _Section | None) -> Mapping[str, bytes]:
    if section is None:
        return {}
    for user in section.values:
        if not _HASH.fullmatch(section.text(user)):
            raise section.error(user, "is not a bcrypt hash; make one with htpasswd -nBC 10 ''")
        if ":" in user:
            raise section.error(user, "no client can send a name with a colon; rename the user")
    return {user: section.text(user).encode() for user in section.values}


def _stamp(path: str) -> _Stamp:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
