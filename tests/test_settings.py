"""Settings: one declaration, four places to write a value, errors that name place and remedy."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from exporter.settings import (
    OPTIONS,
    Command,
    ConfigError,
    Duration,
    Ledger,
    ListenAddress,
    ProjectLabel,
    Settings,
    Transcripts,
    describe,
    load,
)

PREFIX = "GEMINI_CLI_EXPORTER_"
Write = Callable[[str | bytes], Path]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the configuration file and return its path."""

    def write(text: str | bytes) -> Path:
        path = tmp_path / "exporter.yml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def settings(*argv: str, environ: Mapping[str, str] | None = None) -> Settings:
    return load(argv, environ or {}, "linux")[1]


def refusal(*argv: str, environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(argv, environ or {}, "linux")
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


# Where values come from


def test_every_option_has_a_flag_a_variable_and_a_help_text() -> None:
    assert {option.flag: option.variable for option in OPTIONS} == {
        "--config.file": f"{PREFIX}CONFIG_FILE",
        "--transcripts.root": f"{PREFIX}TRANSCRIPTS_ROOT",
        "--transcripts.rescan-interval": f"{PREFIX}TRANSCRIPTS_RESCAN_INTERVAL",
        "--ledger.path": f"{PREFIX}LEDGER_PATH",
        "--web.listen-address": f"{PREFIX}WEB_LISTEN_ADDRESS",
        "--labels.project": f"{PREFIX}LABELS_PROJECT",
        "--log.level": f"{PREFIX}LOG_LEVEL",
        "--log.format": f"{PREFIX}LOG_FORMAT",
    }
    assert all(option.written.help.endswith(".") for option in OPTIONS)


def test_without_any_setting_the_defaults_hold(home: Path) -> None:
    found = settings()
    assert found.config.file is None
    assert found.transcripts.root == (home / ".gemini",)
    assert found.transcripts.rescan_interval == 30.0
    assert found.ledger.path == home / ".local/state/gemini-cli-exporter/ledger.db"
    assert found.web.listen_address == (ListenAddress("127.0.0.1", 9742),)
    assert found.labels.project is ProjectLabel.SLUG
    assert (found.log.level, found.log.format) == ("info", "logfmt")
    assert found.pricing.multiplier == 1
    assert found.pricing.models == {}


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
    write: Write, flag: str | None, variable: str | None, expected: str
) -> None:
    argv = [f"--config.file={write('log: {level: debug, format: json}')}"]
    argv += [] if flag is None else ["--log.level", flag]
    environ = {} if variable is None else {f"{PREFIX}LOG_LEVEL": variable}
    found = settings(*argv, environ=environ)
    assert found.log.level == expected
    assert found.log.format == "json"


def test_several_values_replace_those_of_a_weaker_place(write: Write) -> None:
    path = str(write("transcripts: {root: [/file]}"))
    environ = {f"{PREFIX}TRANSCRIPTS_ROOT": "/one:/two", f"{PREFIX}CONFIG_FILE": path}
    assert settings(environ=environ).transcripts.root == (Path("/one"), Path("/two"))
    found = settings("--transcripts.root", "/flag", environ=environ)
    assert found.transcripts.root == (Path("/flag"),)


def test_a_file_may_use_dashes_or_underscores_and_one_value_for_a_list(write: Write) -> None:
    for key in ("listen-address", "listen_address"):
        path = write(f"web: {{{key}: ':80'}}\nlog:\nlabels: {{project: }}\n")
        found = settings("--config.file", str(path))
        assert found.web.listen_address == (ListenAddress("", 80),)
        assert found.labels.project is ProjectLabel.SLUG


def test_an_empty_file_sets_nothing(write: Write) -> None:
    assert settings("--config.file", str(write("# nothing yet\n"))).log.level == "info"


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
        (["onec"], "'onec': unknown command, did you mean once?; there are serve, once"),
        (["watch"], "'watch': unknown command; there are serve, once"),
        (["once", "serve"], "'once serve': give one command only: serve, once"),
        (["--log.levl", "warn"], "--log.levl: unknown option, did you mean --log.level?"),
        (["--frobnicate=1"], "--frobnicate: unknown option; --help lists all"),
        (["--log.lev", "warn"], "--log.lev: unknown option, did you mean --log.level?"),
        (["--log.level"], "--log.level: expected one argument"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_line_that_cannot_be_used_is_refused(argv: list[str], message: str) -> None:
    assert refusal(*argv) == message


# Values


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("1h30m", 5400), ("250ms", 0.25), ("1h1m1s1ms", 3661.001)],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert Duration.parse(text) == pytest.approx(seconds, abs=1e-9)


@given(st.integers(1, 366 * 86_400_000))
def test_a_duration_is_written_as_it_is_read(milliseconds: int) -> None:
    duration = Duration(milliseconds / 1000)
    assert round(Duration.parse(str(duration)) * 1000) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "s", "m5", "5", "1.5h", "1m1h", "-1s", "0s", "0ms", "8785h", "1h 30m", "5d", "٣"]
)
def test_a_duration_that_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write for example 90s|at most 8784h"):
        Duration.parse(text)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9742", "127.0.0.1", 9742),
        ("localhost:0", "localhost", 0),
        ("my-host_1.example:65535", "my-host_1.example", 65535),
        (":9742", "", 9742),
        ("[::1]:9742", "::1", 9742),
        ("[fe80::1%eth0]:9742", "fe80::1%eth0", 9742),
    ],
)
def test_an_address_is_read_and_written_alike(text: str, host: str, port: int) -> None:
    address = ListenAddress.parse(text)
    assert address == (host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "9742",
        "localhost",
        "localhost:",
        "localhost:http",
        "localhost:65536",
        "::1:9742",
        "[::1]",
        "[]:9742",
        "[127.0.0.1]:9742",
        "http://localhost:9742",
        "a b:9742",
        "127.0.0.1:9742,127.0.0.1:9743",
    ],
)
def test_an_address_that_cannot_be_used_is_refused(text: str) -> None:
    assert refusal("--web.listen-address", text) == (
        f"--web.listen-address: {text!r} is not HOST:PORT, as in 127.0.0.1:9742 or [::1]:9742"
    )


def test_paths_are_absolute_with_the_home_folder_filled_in(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    roots = ("~/a", "b/../c", "/d, with a comma", "/d, with a comma/", "[e]")
    found = settings(*(f"--transcripts.root={root}" for root in roots), "--ledger.path=~/l.db")
    expected = (home / "a", home / "c", Path("/d, with a comma"), home / "[e]")
    assert found.transcripts.root == expected
    assert found.ledger.path == home / "l.db"


def test_a_path_need_not_be_text() -> None:
    name = os.fsdecode(b"/caf\xe9")
    found = settings("--transcripts.root", name)
    assert os.fsencode(found.transcripts.root[0]) == b"/caf\xe9"
    assert describe(found)["transcripts.root"] == [name]


def test_variables_hold_several_values() -> None:
    environ = {
        f"{PREFIX}TRANSCRIPTS_ROOT": os.pathsep.join(["/a, b", "", "/c", "/c"]),
        f"{PREFIX}WEB_LISTEN_ADDRESS": ":1, [::1]:2",
    }
    found = settings(environ=environ)
    assert found.transcripts.root == (Path("/a, b"), Path("/c"))
    assert found.web.listen_address == (("", 1), ("::1", 2))


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
    write: Write, text: str | bytes, message: str
) -> None:
    path = write(text)
    assert refusal("--config.file", str(path)).startswith(f"{path}{message}")


def test_a_fault_in_the_file_is_not_blamed_on_a_flag_beside_it(write: Write) -> None:
    path = write("log: {format: xml}")
    message = refusal("--log.level", "info", "--config.file", str(path))
    assert message.startswith(f"{path}: log.format: ")


# Prices


def test_own_prices_are_exact_decimals_and_keep_the_name_of_the_model(write: Write) -> None:
    path = write("""
pricing:
  multiplier: 0.5
  models:
    models/my-own_model:
      input: 0.1
      output: 2.5
      above: {tokens: 200_000, input: 0.2, cached: 0.05, output: 5}
      from: 2026-01-01
      to: "2026-07-01"
    free: {input: 0, cached: 0, output: 0}
    gemini-3.5-flash: {price-as: gemini-3.6-flash, multiplier: 1.1}
    gemini-2.5-pro: {price_as: other}
    gemini-2.5-flash: {multiplier: 2}
""")
    pricing = settings("--config.file", str(path)).pricing
    assert pricing.multiplier == Decimal("0.5")
    own = pricing.models["models/my-own_model"]
    assert (own.input, own.cached, own.output) == (Decimal("0.1"), None, Decimal("2.5"))
    assert own.above is not None
    assert (own.above.tokens, own.above.cached) == (200_000, Decimal("0.05"))
    assert (own.from_, own.to) == (date(2026, 1, 1), date(2026, 7, 1))
    assert pricing.models["free"].output == 0
    assert pricing.models["gemini-3.5-flash"].price_as == "gemini-3.6-flash"
    assert pricing.models["gemini-3.5-flash"].multiplier == Decimal("1.1")
    assert pricing.models["gemini-2.5-pro"].price_as == "other"
    assert pricing.models["gemini-2.5-flash"].multiplier == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", ": needs input and output, or price-as, or multiplier"),
        ("{input: 1}", ": needs both input and output"),
        ("{cached: 1}", ": needs both input and output"),
        ("{price-as: x, input: 1, output: 1}", ": price-as and input exclude each other"),
        ("{price-as: ''}", ".price-as: must have at least 1 character"),
        ("{input: -1, output: 1}", ".input: must be greater than or equal to 0, not -1"),
        ("{input: 1, output: 1000001}", ".output: must be less than or equal to 1000000"),
        ("{input: 0.1234567, output: 1}", ".input: must have no more than 6 decimal places"),
        ("{input: .inf, output: 1}", ".input: must be a finite number, not inf"),
        ("{input: true, output: 1}", ".input: must be an integer, float, string or Decimal"),
        ("{input: 1, outptu: 1}", ".outptu: unknown key, did you mean output?"),
        ("{input: 1, output: 1, above: {tokens: 1, input: 1}}", ".above.output: is missing"),
        ("{input: 1, output: 1, above: {tokens: 1.5, input: 1, output: 1}}", ".above.tokens: must"),
        ("{price-as: x, from: 20261008}", ".from: '20261008' is not a date: write for example"),
        ("{price-as: x, from: soon}", ".from: 'soon' is not a date: write for example 2026-10-08"),
        ("{price-as: x, from: 2026-10-08T00:00:00Z}", ".from: '2026-10-08 00:00:00+00:00' is not"),
        ("{price-as: x, from: 2026-10-08, to: 2026-10-08}", ": from must be before to"),
        ("5", ": must be a valid dictionary"),
    ],
)
def test_own_prices_that_cannot_be_used_are_refused(write: Write, text: str, message: str) -> None:
    path = write(f"pricing: {{models: {{gemini-x: {text}}}}}")
    expected = f"{path}: pricing.models.gemini-x{message}"
    assert refusal("--config.file", str(path)).startswith(expected)


# The result


def test_settings_are_frozen() -> None:
    found = settings()
    with pytest.raises(ValidationError, match="frozen"):
        found.log = found.log
    with pytest.raises(ValidationError, match="frozen"):
        found.log.level = found.log.level


def test_settings_made_in_code_read_nothing_from_the_surroundings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LOG", "log", f"{PREFIX}LOG_LEVEL", "LOG_LEVEL"):
        monkeypatch.setenv(name, '{"level": "debug"}')
    found = Settings(transcripts=Transcripts(root=(Path("/r"),)), ledger=Ledger(path=Path("/l")))
    assert found.log.level == "info"
    assert found.transcripts.root == (Path("/r"),)


def test_the_description_is_flat_and_written_as_it_is_read(write: Write) -> None:
    path = write("pricing: {models: {gemini-x: {input: 0.30, output: 1, from: 2026-01-01}}}")
    found = settings(
        "--config.file", str(path), "--transcripts.root=/r", "--ledger.path=/l.db",
        "--web.listen-address=[::1]:1", "--transcripts.rescan-interval=5400s",
    )  # fmt: skip
    assert describe(found) == {
        "config.file": str(path),
        "transcripts.root": ["/r"],
        "transcripts.rescan-interval": "1h30m",
        "ledger.path": "/l.db",
        "web.listen-address": ["[::1]:1"],
        "labels.project": "slug",
        "log.level": "info",
        "log.format": "logfmt",
        "pricing.multiplier": "1",
        "pricing.models.gemini-x.input": "0.3",
        "pricing.models.gemini-x.output": "1",
        "pricing.models.gemini-x.multiplier": "1",
        "pricing.models.gemini-x.from": "2026-01-01",
    }
