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
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from . import __version__

if TYPE_CHECKING:
    from .declaring import Option
    from .sources import Asked

PROGRAM: Final = "gemini-cli-exporter"

log = logging.getLogger(__name__)

_WRAP: Final = textwrap.TextWrapper(74, break_on_hyphens=False)

_HELP: Final = """\
usage: gemini-cli-exporter [command] [options]

Counts what Gemini CLI used and what it cost: tails the transcripts it leaves on
disk, keeps each recorded turn exactly once in a ledger, and serves tokens and
US dollars to Prometheus, or pushes them by OTLP. Prompts and replies are never
kept.

commands:
  serve   follow the transcripts and answer scrapes on /metrics (the default)
  once    read what is new, print the metrics to standard output and exit
  demo    serve an invented, lively home: no Gemini CLI is needed
  history print the past as OpenMetrics with timestamps, for `promtool tsdb
          create-blocks-from openmetrics`
  check   say whether the configuration can be used
  assets DIR
          write the bundled dashboards, rules, deployment files and documents

options, before or after the command (a flag wins over its environment variable,
the variable over the YAML file, the file over the default):
{options}
options of history alone:
{history}

  -h, --help   print this text
  --version    print the version

A TIME is written 90s, 5m, 1h30m or 250ms. An environment variable holds several
folders separated by {pathsep!r}, several addresses or names by ','.

The YAML file nests as the flags do. It alone can hold the budgets and names of
projects, and prices, in US dollars per million tokens:
  transcripts:
    root: [~/.gemini, /mnt/laptop/.gemini]
  labels:
    projects: {{/home/me/old-shop: shop}}  # label by short name or path
  budget:
    month: 200                          # USD
    projects: {{shop: {{month: 50, day: 5}}}}
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
  gemini-cli-exporter --no-web --otlp.endpoint http://localhost:4318
      push to an OpenTelemetry Collector instead of being scraped
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
    from .commands import HISTORY_OPTIONS
    from .settings import OPTIONS, describe

    if "--help" in argv or "-h" in argv:
        defaults = sources.defaults(os.environ, sys.platform)
        print(_help(OPTIONS, HISTORY_OPTIONS, defaults), end="")
        return 0
    try:
        asked = sources.load(argv, os.environ, sys.platform)
    except sources.ConfigError as error:
        return _fail(2, error)

    from . import logs, parts

    logs.setup(asked.settings.log.level, asked.settings.log.format)
    # A one-off prints metrics: what it was told is of interest to whoever looks for a fault.
    level = logging.INFO if asked.command in ("serve", "demo") else logging.DEBUG
    fields = {"version": __version__, "command": str(asked.command)}
    log.log(level, "starting", extra={"fields": fields})
    log.log(level, "configuration", extra={"fields": describe(asked.settings)})
    try:
        return _do(asked)
    except parts.ServiceError as error:
        return _fail(1, error)
    except sources.ConfigError as error:
        return _fail(2, error)


def _do(asked: Asked) -> int:
    """Run the command; its modules are imported only now, since some are slow to import."""
    from .commands import Assets, Command, History

    settings, options = asked.settings, asked.options
    if asked.command is Command.SERVE:
        from .service import serve

        return serve(settings)
    if asked.command is Command.DEMO:
        from .service import demo

        return demo(settings)
    from . import oneoffs

    if isinstance(options, History):
        return oneoffs.history(settings, options)
    if isinstance(options, Assets):
        return oneoffs.assets(options)
    if asked.command is Command.CHECK:
        return oneoffs.check(settings)
    return oneoffs.once(settings)


def _fail(code: int, error: object) -> int:
    print(f"{PROGRAM}: error: {' '.join(str(error).splitlines())}", file=sys.stderr)
    return code


def _help(
    options: Sequence[Option],
    history: Sequence[Option],
    defaults: Mapping[str, Mapping[str, object]],
) -> str:
    return _HELP.format(
        options="\n".join(_listed(options, defaults)),
        history="\n".join(_listed(history, {})),
        pathsep=os.pathsep,
    )


def _listed(
    options: Sequence[Option], defaults: Mapping[str, Mapping[str, object]]
) -> Iterator[str]:
    for option in options:
        default = defaults.get(option.group, {}).get(option.name, option.default)
        several = default if isinstance(default, list | tuple) else [default]
        yield f"  {option.synopsis}"
        yield from (f"      {line}" for line in _WRAP.wrap(option.written.help))
        if option.is_switch:
            several = ["yes" if default else "no"]
        if default not in (None, ()):
            yield f"      Default: {', '.join(map(str, several))}"
        if option.group:
            yield f"      Environment: {option.variable}"
