"""The command line: commands, help and exit codes.

0 is fine, 1 a failure while running, 2 a command line or configuration that cannot be used, 130 an
interrupt from the keyboard. Whatever ends the program is one line on standard error, a bug too; the
traceback is for the log, at level debug.
"""

from __future__ import annotations

import logging
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from . import __version__

if TYPE_CHECKING:
    from .settings import Option

PROGRAM: Final = "gemini-cli-exporter"

log = logging.getLogger(__name__)

_WRAP: Final = textwrap.TextWrapper(74, break_on_hyphens=False)

_HELP: Final = """\
usage: gemini-cli-exporter [serve | once] [options]

Counts what Gemini CLI used and what it cost: tails the transcripts it leaves on
disk, keeps each recorded turn exactly once in a ledger, and serves tokens and
US dollars to Prometheus. Prompts and replies are never kept.

commands:
  serve   follow the transcripts and answer scrapes on /metrics (the default)
  once    read what is new, print the metrics to standard output and exit

options, before or after the command (a flag wins over its environment variable,
the variable over the YAML file, the file over the default):
{options}
  -h, --help   print this text
  --version    print the version

A TIME is written 90s, 5m, 1h30m or 250ms. An environment variable holds several
folders separated by {pathsep!r}, several addresses or names by ','.

The YAML file nests as the flags do. It alone can hold prices, in US dollars per
million tokens:
  transcripts:
    root: [~/.gemini, /mnt/laptop/.gemini]
  pricing:
    multiplier: 0.5                     # of every price, 0 to 1000
    models:
      gemini-2.5-pro:                   # as recorded, without models/
        input: 1.25
        cached: 0.31                    # unless given: the input price
        output: 10
        above: {{tokens: 200000, input: 2.5, cached: 0.625, output: 15}}
        from: 2025-06-17                # the first day, UTC
        to: 2025-10-01                  # the first day after
      gemini-3.5-flash: {{price-as: gemini-3.6-flash}}
      gemini-2.5-flash: {{multiplier: 1.1}}

examples:
  gemini-cli-exporter
      serve the usage recorded in ~/.gemini on http://127.0.0.1:9742/metrics
  gemini-cli-exporter once | grep cost_usd
      what was spent, on the terminal
  gemini-cli-exporter --config.file /etc/gemini-cli-exporter.yml
      as a service, with own prices
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program on `argv`, by default that of the process, and return its exit code."""
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has all it wants, as in `once | head`. Standard output still holds what it did
        # not take, and would complain about the pipe again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        # As when the disk that standard output goes to is full.
        log.debug("ended", exc_info=True)
        return _fail(1, error)
    except Exception as error:
        log.debug("ended", exc_info=True)
        what = f"{type(error).__name__}: {error}".removesuffix(": ")
        return _fail(1, f"unexpected {what}: please report it")


def _run(argv: Sequence[str]) -> int:
    if "--version" in argv:
        print(PROGRAM, __version__)
        return 0
    # The libraries behind these modules are slow to import: `--version` does without them.
    from . import sources
    from .settings import OPTIONS, describe

    if "--help" in argv or "-h" in argv:
        print(_help(OPTIONS, sources.defaults(os.environ, sys.platform)), end="")
        return 0
    try:
        command, settings = sources.load(argv, os.environ, sys.platform)
    except sources.ConfigError as error:
        return _fail(2, error)

    from . import logs, service

    logs.setup(settings.log.level, settings.log.format)
    serving = command is sources.Command.SERVE
    # A one-off prints metrics: what it was told is of interest to whoever looks for a fault.
    level = logging.INFO if serving else logging.DEBUG
    log.log(level, "starting", extra={"fields": {"version": __version__, "command": str(command)}})
    log.log(level, "configuration", extra={"fields": describe(settings)})
    try:
        return service.serve(settings) if serving else service.once(settings)
    except service.ServiceError as error:
        return _fail(1, error)


def _fail(code: int, error: object) -> int:
    print(f"{PROGRAM}: error: {' '.join(str(error).splitlines())}", file=sys.stderr)
    return code


def _help(options: Sequence[Option], defaults: Mapping[str, Mapping[str, object]]) -> str:
    lines = []
    for option in options:
        default = defaults.get(option.group, {}).get(option.name, option.default)
        several = default if isinstance(default, list | tuple) else [default]
        lines += [f"  {option.synopsis}"]
        lines += [f"      {line}" for line in _WRAP.wrap(option.written.help)]
        if option.is_switch:
            several = ["yes" if default else "no"]
        if default not in (None, ()):
            lines += [f"      Default: {', '.join(map(str, several))}"]
        lines += [f"      Environment: {option.variable}"]
    return _HELP.format(options="\n".join(lines), pathsep=os.pathsep)
