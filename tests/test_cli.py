"""The command line: what it prints, its exit codes, and the log it sets up."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import exporter
from exporter import __version__, cli, logs, sources
from exporter.commands import Command
from exporter.parts import ServiceError
from exporter.settings import OPTIONS, Settings
from exporter.sources import load

PROJECT = Path(__file__).parents[1]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[tuple[str, Settings]]]:
    """What the service was asked to do; the service itself is a stand-in that does nothing."""
    seen: list[tuple[str, Settings]] = []

    def stand_in(name: str) -> Callable[[Settings], int]:
        def run(settings: Settings) -> int:
            seen.append((name, settings))
            return 0

        return run

    for name, commands in (("service", ("serve", "demo")), ("oneoffs", ("once", "check"))):
        module = types.ModuleType(f"exporter.{name}")
        for command in commands:
            monkeypatch.setattr(module, command, stand_in(command), raising=False)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(exporter, name, module, raising=False)
    for name in [name for name in os.environ if name.startswith("GEMINI_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield seen
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def fail(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def once(settings: Settings) -> int:
        raise error

    monkeypatch.setattr(sys.modules["exporter.oneoffs"], "once", once)


# Commands and exit codes


@pytest.mark.parametrize(
    ("argv", "command"),
    [([], "serve"), *(([name], name) for name in ("serve", "once", "demo", "check"))],
    ids=str,
)
def test_a_command_gets_the_settings_and_gives_the_exit_code(
    calls: list[tuple[str, Settings]], argv: list[str], command: str, tmp_path: Path
) -> None:
    assert cli.main([*argv, "--log.level", "warn"]) == 0
    ((called, settings),) = calls
    assert called == command
    assert settings.transcripts.root == (tmp_path / ".gemini",)


def test_the_first_log_lines_of_serve_are_the_version_and_the_configuration(
    calls: list[tuple[str, Settings]], capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["serve", "--log.format", "json", "--web.listen-address", ":0"])
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["msg"], first["version"]) == ("starting", __version__)
    assert second["web.listen-address"] == [":0"]
    assert second["log.format"] == "json"


def test_once_says_nothing_but_the_metrics(
    calls: list[tuple[str, Settings]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["once"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["onec"], "'onec': unknown command, did you mean once?; there are " + ", ".join(Command)),
        (["--log.level", "x\ny"], "must be 'debug', 'info', 'warn' or 'error', not 'x\\ny'"),
        (["--config.file", "a\nb"], "config.file a b: cannot be read: No such file or directory"),
    ],
    ids=["command", "value", "line break"],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(
    calls: list[tuple[str, Settings]],
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    message: str,
) -> None:
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gemini-cli-exporter: error: ")
    assert err.endswith(f"{message}\n")
    assert err.count("\n") == 1
    assert calls == []


def test_a_failure_of_the_service_is_one_line_and_exit_code_1(
    calls: list[tuple[str, Settings]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fail(monkeypatch, ServiceError("the ledger is in use by process 7"))
    assert cli.main(["once"]) == 1
    assert capsys.readouterr().err == (
        "gemini-cli-exporter: error: the ledger is in use by process 7\n"
    )


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("slug"), "unexpected KeyError: 'slug': please report it"),
        (ValueError("a\nb"), "unexpected ValueError: a b: please report it"),
        (RecursionError(), "unexpected RecursionError: please report it"),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
    ],
    ids=["bug", "line break", "without text", "system"],
)
@pytest.mark.parametrize("level", ["error", "debug"])
def test_what_was_not_foreseen_is_one_line_and_its_traceback_is_for_debugging(
    calls: list[tuple[str, Settings]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    message: str,
    level: str,
) -> None:
    fail(monkeypatch, error)
    assert cli.main(["once", "--log.level", level]) == 1
    out, err = capsys.readouterr()
    *logged, last = err.splitlines()
    assert (out, last) == ("", f"gemini-cli-exporter: error: {message}")
    assert ["traceback=" in line for line in logged][-1:] == [True][: level == "debug"]


def test_a_bug_before_the_log_is_set_up_is_one_line_too(
    calls: list[tuple[str, Settings]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "load", lambda *_: 1 // 0)
    assert cli.main([]) == 1
    assert capsys.readouterr().err == (
        "gemini-cli-exporter: error: unexpected ZeroDivisionError:"
        " integer division or modulo by zero: please report it\n"
    )


def test_an_interrupt_is_exit_code_130_and_no_traceback(
    calls: list[tuple[str, Settings]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fail(monkeypatch, KeyboardInterrupt())
    assert cli.main(["once"]) == 130
    assert capsys.readouterr().err == ""


def test_a_reader_that_has_enough_ends_the_program_quietly() -> None:
    program = """
import sys, types
oneoffs = types.ModuleType("exporter.oneoffs")
oneoffs.once = lambda settings: [print("metric 1") for _ in range(100_000)] and 0
sys.modules["exporter.oneoffs"] = oneoffs
import exporter
exporter.oneoffs = oneoffs
from exporter.cli import main
raise SystemExit(main(["once"]))
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == b"metric 1\n"
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 0


def test_the_module_can_be_run() -> None:
    command = [sys.executable, "-m", "exporter", "--version"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout == f"gemini-cli-exporter {__version__}\n"


@pytest.mark.parametrize("argv", [["--version"], ["once", "--log.level=debug", "--version"]])
def test_the_version_is_told_without_the_slow_libraries(argv: list[str]) -> None:
    program = (
        f"import sys; from exporter.cli import main; main({argv!r});"
        "print(sorted({'pydantic', 'orjson', 'yaml', 'uvicorn', 'sqlite3'} & {*sys.modules}))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout == f"gemini-cli-exporter {__version__}\n[]\n"


# Help


@pytest.fixture
def help_text(calls: list[tuple[str, Settings]], capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["once", "-h"]) == 0
    assert calls == []
    return capsys.readouterr().out


def test_help_fits_a_terminal_of_80_columns(help_text: str) -> None:
    assert max(map(len, help_text.splitlines())) <= 80


def test_help_shows_each_option_with_its_default_and_its_variable(help_text: str) -> None:
    for option in OPTIONS:
        _, found, rest = help_text.partition(f"\n  {option.synopsis}\n")
        assert found
        block = re.split(r"\n  (?=\S)", rest)[0]
        assert f"Environment: {option.variable}" in block
        assert ("Default: " in block) == (option.default not in (None, ()))
    assert "Default: 30s\n" in help_text
    assert "Default: 127.0.0.1:9742\n" in help_text


def test_the_file_that_help_shows_can_be_used(help_text: str, tmp_path: Path) -> None:
    shown = help_text.partition("million tokens:\n")[2].partition("\nexamples:")[0]
    path = tmp_path / "shown.yml"
    path.write_text(shown, encoding="utf-8")
    assert set(yaml.safe_load(shown)) == {"transcripts", "labels", "budget", "pricing"}
    settings = load(["--config.file", str(path)], {}, "linux")[1]
    assert len(settings.pricing.models) == 3


def test_the_commands_that_help_shows_can_be_used(help_text: str) -> None:
    shown = re.findall(
        r"^  gemini-cli-exporter ?(.*)$", help_text.partition("examples:")[2], re.MULTILINE
    )
    assert len(shown) == 4
    for line in shown:
        argv = line.partition(" |")[0].replace("--config.file /etc/gemini-cli-exporter.yml", "")
        load(argv.split(), {}, "linux")


# Logs


def line(style: logs.Format, fields: Mapping[str, object], **record: object) -> str:
    made = logging.makeLogRecord(
        {
            "name": "exporter.x",
            "msg": "it happened",
            "levelno": logging.INFO,
            "levelname": "INFO",
            "created": 1796069505.345,
            "fields": fields,
            **record,
        }
    )
    return logs.LineFormatter(style).format(made)


def test_a_logfmt_record_is_one_line_of_pairs() -> None:
    fields = {
        "files": 3,
        "seconds": 0.5,
        "live": True,
        "path": "/home/ana/my shop",
        "roots": ["/a", "/b"],
        "empty": "",
        "hostile": 'a"b\\c\nd\re\tf\x00\x85\u2028\ud83dé\U000e0001',
        "bad key=": "x",
    }
    assert line(logs.Format.LOGFMT, fields) == (
        'ts=2026-11-30T20:11:45.345Z level=info logger=exporter.x msg="it happened" files=3'
        ' seconds=0.5 live=true path="/home/ana/my shop" roots=/a,/b empty=""'
        r' hostile="a\"b\\c\nd\re\tf\u0000\u0085\u2028\ud83dé\U000e0001" bad_key_=x'
    )


def test_a_json_record_is_one_object() -> None:
    fields = {"files": 3, "big": 2**70, "live": None, "path": "a\nb\ud83d", "of": {"a": [1, 0.5]}}
    assert json.loads(line(logs.Format.JSON, fields)) == {
        "ts": "2026-11-30T20:11:45.345Z",
        "level": "info",
        "logger": "exporter.x",
        "msg": "it happened",
        "files": 3,
        "big": str(2**70),
        "live": None,
        "path": "a\nb\\ud83d",
        "of": {"a": [1, 0.5]},
    }


@pytest.mark.parametrize("style", logs.Format)
@given(text=st.text(st.characters(exclude_categories=())))
def test_any_text_is_one_line_that_can_be_written(style: logs.Format, text: str) -> None:
    written = line(style, {"value": text, "list": [text]}, msg=text)
    assert written.encode().splitlines() == [written.encode()]


@pytest.mark.parametrize(
    ("level", "name"),
    [("WARNING", "warn"), ("CRITICAL", "error"), ("ERROR", "error"), ("DEBUG", "debug")],
)
def test_levels_have_the_names_of_the_setting(level: str, name: str) -> None:
    assert f" level={name} " in line(logs.Format.LOGFMT, {}, levelname=level)


@pytest.mark.parametrize(("level", "traced"), [("info", False), ("debug", True)])
def test_an_exception_is_one_field_and_its_traceback_is_for_debugging(
    calls: list[tuple[str, Settings]],
    capsys: pytest.CaptureFixture[str],
    level: str,
    traced: bool,
) -> None:
    logs.setup(logs.Level(level), logs.Format.LOGFMT)
    try:
        raise OSError(28, "No space left on device")
    except OSError:
        logging.getLogger("exporter.x").exception("cannot write")
    (written,) = capsys.readouterr().err.splitlines()
    assert 'msg="cannot write" error="OSError: [Errno 28] No space left on device"' in written
    assert ("traceback=" in written) == traced


def test_setup_replaces_the_handlers_and_takes_the_warnings_of_libraries(
    calls: list[tuple[str, Settings]], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        logs.setup(logs.Level.WARN, logs.Format.JSON)
    logging.getLogger("exporter.x").info("not written")
    logging.getLogger("py.warnings").warning("a library's\nwarning")
    (written,) = capsys.readouterr().err.splitlines()
    assert json.loads(written)["msg"] == "a library's\nwarning"
