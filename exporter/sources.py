"""Where settings are written: flags, the environment, a YAML file, and the machine's defaults.

A flag wins over the environment, the environment over the file, the file over the default. A value
that cannot be used is a `ConfigError`, and so is every name that is not known.
"""

from __future__ import annotations

import argparse
import os
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from .commands import HISTORY_OPTIONS, Assets, Command, History
from .declaring import PREFIX
from .prices import ModelPrice, PriceAbove
from .settings import GROUPS, OPTIONS, Settings

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

# Kubernetes puts these into every pod beside a service that is called gemini-cli-exporter.
_SERVICE_LINK: Final = re.compile(
    r"SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?"
)

_Options = TypeVar("_Options", History, Assets)

_Layer = dict[str, dict[str, Any]]
"""Values as they were written in one place: group -> name with dashes -> value."""


class ConfigError(Exception):
    """A setting cannot be used: one line with where it was given, what is wrong and the remedy."""


class Asked(NamedTuple):
    """A command, the settings in force, and the command's own options if it has any."""

    command: Command
    settings: Settings
    options: History | Assets | None = None


def load(argv: Sequence[str], environ: Mapping[str, str], platform: str) -> Asked:
    """Return what is asked for and the settings in force; raises ConfigError.

    `platform` is spelled as `sys.platform` is. In a path, `~` is the home folder of this process; a
    relative path starts at its working directory.
    """
    command, flags, options = _read_flags(argv)
    variables = _read_variables(environ)
    path = (variables.get("config", {}) | flags.get("config", {})).get("file", "")
    file = _read_file(path)
    layers = (flags, variables, file, defaults(environ, platform))
    try:
        return Asked(command, Settings.model_validate(_merged(layers)), options)
    except ValidationError as error:
        fault = error.errors()[0]
    keys = [key for key in fault["loc"] if isinstance(key, str)]
    option = next((option for option in OPTIONS if [*option[:2]] == keys[:2]), None)
    flag, variable = (option.flag, option.variable) if option else ("", "")
    key = ".".join(key if key.isprintable() else ascii(key) for key in keys)
    places = (flag, variable, f"{path}: {key}", f"the default of {flag}")
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


def _merged(layers: Sequence[_Layer]) -> _Layer:
    """Return all values, each from the first layer that has it."""
    merged: _Layer = {}
    for layer in reversed(layers):
        for group, values in layer.items():
            merged[group] = {**merged.get(group, {}), **values}
    return merged


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))


def _read_flags(argv: Sequence[str]) -> tuple[Command, _Layer, History | Assets | None]:
    parser = _Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for option in (*OPTIONS, *HISTORY_OPTIONS):
        action: Any = "append" if option.written.separator else "store"
        if option.is_switch:
            action = argparse.BooleanOptionalAction
        parser.add_argument(option.flag, action=action, dest=option.flag)
    # Words are left over instead of declared, so that they may stand before or after the options.
    parsed, words = parser.parse_known_args(argv)
    given = vars(parsed)
    for word in words:
        if word.startswith("-"):
            flag = word.partition("=")[0]
            hint = _closest(flag, [option.flag for option in (*OPTIONS, *HISTORY_OPTIONS)])
            raise ConfigError(f"{flag}: unknown option{hint or '; --help lists all'}")
    command = _command(words)
    layer: _Layer = {}
    for option in OPTIONS:
        if option.flag in given:
            layer.setdefault(option.group, {})[option.name] = given[option.flag]
    own = {option.name: given[option.flag] for option in HISTORY_OPTIONS if option.flag in given}
    if command is Command.HISTORY:
        return command, layer, _options(History, own)
    if own:
        raise ConfigError(f"--{min(own)}: only the command history has this option")
    if command is Command.ASSETS:
        return command, layer, _options(Assets, {"folder": words[1]})
    return command, layer, None


def _command(words: Sequence[str]) -> Command:
    """Return the command of a command line without its options."""
    if not words:
        return Command.SERVE
    if words[0] not in [*Command]:
        hint = _closest(words[0], Command)
        raise ConfigError(f"{words[0]!r}: unknown command{hint}; there are {', '.join(Command)}")
    command = Command(words[0])
    if command is Command.ASSETS and len(words) != 2:
        raise ConfigError("assets: name one folder to write to, as in assets ./gemini-cli")
    if command is not Command.ASSETS and len(words) > 1:
        raise ConfigError(f"{' '.join(words)!r}: give one command only: {', '.join(Command)}")
    return command


def _options(kind: type[_Options], given: Mapping[str, object]) -> _Options:
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        fault = error.errors()[0]
        raise ConfigError(f"--{fault['loc'][0]}: {_complaint(fault)}") from None


def _read_variables(environ: Mapping[str, str]) -> _Layer:
    known = {option.variable: option for option in OPTIONS}
    layer: _Layer = {}
    for variable, value in environ.items():
        suffix = variable.removeprefix(PREFIX)
        if suffix == variable or _SERVICE_LINK.fullmatch(suffix):
            continue
        option = known.get(variable)
        if option is None:
            hint = _closest(variable, known, PREFIX)
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
    groups = [group for group in GROUPS if group != "config"]
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
        groups: list[type[BaseModel]] = [*GROUPS.values(), ModelPrice, PriceAbove]
        known = {str(field.alias) for group in groups for field in group.model_fields.values()}
        return f"unknown key{_closest(str(fault['loc'][-1]), known)}"
    if fault["type"] == "missing":
        return "is missing"
    return f"{re.sub('^.* should', 'must', fault['msg'])}, not {reprlib.repr(fault['input'])}"


def _closest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return the question whether a known word was meant; a common prefix makes none alike."""
    found = get_close_matches(word.removeprefix(prefix), [k.removeprefix(prefix) for k in known], 1)
    return f", did you mean {prefix}{found[0]}?" if found else ""
