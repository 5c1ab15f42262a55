"""Where settings are written: four places, errors that name place and remedy."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.commands import Assets, Command, History
from exporter.declaring import PREFIX
from exporter.ledger.labels import ProjectLabel
from exporter.sources import load
from exporter.values import ListenAddress
from tests.support import millis, refusal, settings

ALL = ", ".join(Command)

WriteConfig = Callable[[str | bytes], Path]

pytestmark = pytest.mark.usefixtures("user_home")


@pytest.mark.parametrize(
    ("flag", "variable", "expected"),
    [
        ("error", "warn", "error"),
        (None, "warn", "warn"),
        (None, "", "debug"),
        (None, None, "debug"),
    ],
    ids=["flag", "variable", "file, as the variable is empty", "file"],
)
def test_a_flag_wins_over_the_variable_and_that_over_the_file(
    write_config: WriteConfig, flag: str | None, variable: str | None, expected: str
) -> None:
    argv = [f"--config.file={write_config('log: {level: debug, format: json}')}"]
    argv += [] if flag is None else ["--log.level", flag]
    environ = {} if variable is None else {f"{PREFIX}LOG_LEVEL": variable}
    found = settings(*argv, environ=environ)
    assert found.log.level == expected
    assert found.log.format == "json"


def test_several_values_replace_those_of_a_weaker_place(write_config: WriteConfig) -> None:
    path = str(write_config("transcripts: {root: [/file]}"))
    environ = {f"{PREFIX}TRANSCRIPTS_ROOT": "/one:/two", f"{PREFIX}CONFIG_FILE": path}
    assert settings(environ=environ).transcripts.root == (Path("/one"), Path("/two"))
    found = settings("--transcripts.root", "/flag", environ=environ)
    assert found.transcripts.root == (Path("/flag"),)


def test_a_file_may_use_dashes_or_underscores_and_one_value_for_a_list(
    write_config: WriteConfig,
) -> None:
    for key in ("listen-address", "listen_address"):
        path = write_config(f"web: {{{key}: ':80'}}\nlog:\nlabels: {{project: }}\n")
        found = settings("--config.file", str(path))
        assert found.web.listen_address == (ListenAddress("", 80),)
        assert found.labels.project is ProjectLabel.SLUG


def test_an_empty_file_sets_nothing(write_config: WriteConfig) -> None:
    assert settings("--config.file", str(write_config("# nothing yet\n"))).log.level == "info"


@pytest.mark.parametrize(
    ("environ", "platform", "roots", "ledger"),
    [
        ({"GEMINI_DIR": "/dir", "GEMINI_CLI_HOME": "/cli"}, "linux", ["/dir"], "~/.local/state"),
        ({"GEMINI_CLI_HOME": "/cli"}, "linux", ["/cli/.gemini"], "~/.local/state"),
        ({"GEMINI_DIR": "", "GEMINI_CLI_HOME": ""}, "linux", ["~/.gemini"], "~/.local/state"),
        ({"XDG_STATE_HOME": "/state"}, "linux", ["~/.gemini"], "/state"),
        ({"XDG_STATE_HOME": "relative"}, "linux", ["~/.gemini"], "~/.local/state"),
        (
            {"XDG_STATE_HOME": "/state"},
            "darwin",
            ["~/.gemini", "~/.cache/.gemini"],
            "~/Library/Application Support",
        ),
        ({"LOCALAPPDATA": "/local"}, "win32", ["~/.gemini"], "/local"),
        ({}, "win32", ["~/.gemini"], "~/AppData/Local"),
    ],
)
def test_defaults_follow_the_machine(
    environ: dict[str, str], platform: str, roots: list[str], ledger: str
) -> None:
    found = load([], environ, platform)[1]
    assert found.transcripts.root == tuple(Path(root).expanduser() for root in roots)
    assert found.ledger.path == Path(ledger).expanduser() / "gemini-cli-exporter" / "ledger.db"


def test_variables_of_a_kubernetes_service_of_our_name_are_none_of_ours() -> None:
    links = ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_METRICS", "PORT", "PORT_9742_TCP"]
    links += ["PORT_9742_TCP_PROTO", "PORT_9742_TCP_PORT", "PORT_9742_TCP_ADDR"]
    assert settings(environ=dict.fromkeys((PREFIX + link for link in links), "x")) == settings()


# Commands


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        ([], Command.SERVE),
        (["serve"], Command.SERVE),
        (["once"], Command.ONCE),
        (["once", "--log.level", "warn"], Command.ONCE),
        (["--log.level", "warn", "once"], Command.ONCE),
        (["--log.level=warn", "once", "--log.format=json"], Command.ONCE),
    ],
    ids=" ".join,
)
def test_the_command_may_stand_anywhere(argv: list[str], command: Command) -> None:
    assert load(argv, {}, "linux")[0] is command


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["onec"], f"'onec': unknown command, did you mean once?; there are {ALL}"),
        (["watch"], f"'watch': unknown command; there are {ALL}"),
        (["once", "serve"], f"'once serve': give one command only: {ALL}"),
        (["assets"], "assets: name one folder to write to, as in assets ./gemini-cli"),
        (["assets", "a", "b"], "assets: name one folder to write to, as in assets ./gemini-cli"),
        (["once", "--label", "a=b"], "--label: only the command history has this option"),
        (
            ["history", "--start", "soon"],
            "--start: 'soon' is not a time: write for example 2026-10-08 or 2026-10-08T12:00:00Z",
        ),
        (["--log.levl", "warn"], "--log.levl: unknown option, did you mean --log.level?"),
        (["--frobnicate=1"], "--frobnicate: unknown option; --help lists all"),
        (["--log.lev", "warn"], "--log.lev: unknown option, did you mean --log.level?"),
        (["--log.level"], "--log.level: expected one argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_line_that_cannot_be_used_is_refused(argv: list[str], message: str) -> None:
    assert refusal(*argv) == message


# Values and their places


def test_variables_hold_several_values() -> None:
    environ = {
        f"{PREFIX}TRANSCRIPTS_ROOT": os.pathsep.join(["/a, b", "", "/c", "/c"]),
        f"{PREFIX}WEB_LISTEN_ADDRESS": ":1, [::1]:2",
        f"{PREFIX}WEB_ALLOWED_HOST": "exporter,metrics.example.org",
    }
    found = settings(environ=environ)
    assert found.transcripts.root == (Path("/a, b"), Path("/c"))
    assert found.web.listen_address == (("", 1), ("::1", 2))
    assert found.web.allowed_host == ("exporter", "metrics.example.org")


def test_a_list_that_may_be_empty_may_be_empty_in_the_file(write_config: WriteConfig) -> None:
    path = write_config("web: {allowed-host: []}")
    assert settings("--config.file", str(path)).web.allowed_host == ()


@pytest.mark.parametrize(
    ("argv", "environ", "message"),
    [
        (
            ["--log.level", "loud"],
            {f"{PREFIX}LOG_LEVEL": "info"},
            "--log.level: must be 'debug', 'info', 'warn' or 'error', not 'loud'",
        ),
        (
            [],
            {f"{PREFIX}LOG_LEVEL": "loud"},
            f"{PREFIX}LOG_LEVEL: must be 'debug', 'info', 'warn' or 'error', not 'loud'",
        ),
        (
            [],
            {f"{PREFIX}TRANSCRIPTS_RESCAN_INTERVAL": "30"},
            (
                f"{PREFIX}TRANSCRIPTS_RESCAN_INTERVAL: '30' has no unit:"
                " write for example 90s, 5m, 1h30m or 250ms"
            ),
        ),
        (
            [],
            {f"{PREFIX}TRANSCRIPT_ROOT": "/x"},
            f"{PREFIX}TRANSCRIPT_ROOT: unknown variable, did you mean {PREFIX}TRANSCRIPTS_ROOT?",
        ),
        ([], {f"{PREFIX}COLOUR": ""}, f"{PREFIX}COLOUR: unknown variable; --help lists all"),
        (["--transcripts.root", ""], {}, "--transcripts.root: '' is not a path"),
        (["--ledger.path", "a\0b"], {}, "--ledger.path: 'a\\x00b' is not a path"),
        (
            ["--config.file", "/nowhere/x.yml"],
            {},
            "config.file /nowhere/x.yml: cannot be read: No such file or directory",
        ),
        (["--config.file", ""], {}, "--config.file: '' is not a path"),
        (
            [],
            {"GEMINI_DIR": "~no-such-user/x"},
            (
                "the default of --transcripts.root: the home folder in '~no-such-user/x'"
                " is not known: write the whole path"
            ),
        ),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_the_place_it_stands_in(
    argv: list[str], environ: dict[str, str], message: str
) -> None:
    assert refusal(*argv, environ=environ) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "log: {level: loud}",
            ": log.level: must be 'debug', 'info', 'warn' or 'error', not 'loud'",
        ),
        ("log: {levle: info}", ": log.levle: unknown key, did you mean level?"),
        ("lgo: {level: info}", ": lgo: unknown key, did you mean log?"),
        ("config: {file: x}", ": config: unknown key"),
        ("7: x", ": 7: unknown key"),
        ("log: debug", ": log: must hold settings by name, as in log: {level: debug}"),
        ("[log]", ": must hold settings by name, as in log: {level: debug}"),
        ("log: [", ":1:7: expected the node content, but found '<stream end>'"),
        ("log: !!python/name:os.system x", ":1:6: could not determine a constructor for the tag"),
        (b"log: \xff", ": unacceptable character #x00ff: invalid start byte"),
        ("transcripts: {root: []}", ": transcripts.root: needs at least one value"),
        ("transcripts: {root: [1]}", ": transcripts.root: 1 is not a path"),
        ("transcripts: {rescan-interval: 30}", ": transcripts.rescan-interval: '30' has no unit"),
        ("pricing: {multiplier: 1001}", ": pricing.multiplier: must be less than or equal to 1000"),
        ("pricing: {multiplier: .nan}", ": pricing.multiplier: must be a finite number, not nan"),
        ("pricing: {models: [x]}", ": pricing.models: must be a valid dictionary"),
    ],
    ids=str,
)
def test_a_file_that_cannot_be_used_is_refused_by_its_key(
    write_config: WriteConfig, text: str | bytes, message: str
) -> None:
    path = write_config(text)
    assert refusal("--config.file", str(path)).startswith(f"{path}{message}")


def test_a_fault_in_the_file_is_not_blamed_on_a_flag_beside_it(write_config: WriteConfig) -> None:
    path = write_config("log: {format: xml}")
    message = refusal("--log.level", "info", "--config.file", str(path))
    assert message.startswith(f"{path}: log.format: ")


def test_a_command_has_its_own_options() -> None:
    argv = ["--label", "job=x", "history", "--label=instance=y", "--end", "2026-10-08T00:00:00Z"]
    found = load([*argv, "--allow-overlap"], {}, "linux").options
    expected = History(
        label=("job=x", "instance=y"), end=millis("2026-10-08T00:00:00Z"), allow_overlap=True
    )
    assert found == expected
    assert load(["once"], {}, "linux").options is None
    assert load(["assets", "/x"], {}, "linux").options == Assets(folder=Path("/x"))


@pytest.mark.parametrize(
    ("argv", "value", "expected"),
    [
        ([], "", False),
        ([], "yes", True),
        ([], "false", False),
        (["--labels.owner"], "", True),
        (["--no-labels.owner"], "yes", False),
    ],
)
def test_a_switch_is_turned_by_its_flag_or_a_word(
    argv: list[str], value: str, expected: bool
) -> None:
    environ = {f"{PREFIX}LABELS_OWNER": value}
    assert load(argv, environ, "linux").settings.labels.owner is expected
