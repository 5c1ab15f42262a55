"""The benchmark's own machinery: what it judges, what it refuses, and that all of it still runs."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench import homes, ledgers, process, rival, server, verify
from bench.process import CommandError, Run
from bench.rows import STEPS
from bench.run import main
from bench.subject import Subject
from bench.table import Row, render
from exporter.demo import Calls, Truth, Usage

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the benchmark needs /proc")

ENV = {"PATH": os.environ["PATH"]}
THOUSAND = Truth(usage={("p", "m"): Usage(1, 400, 300, 200, 60, 40)})
TINY = ("--scale", "0.001", "--runs", "1")

# It counts the tokens that the generator noted beside the home.
RIVAL = """\
import json, os, sys
home = os.path.dirname(os.environ["GEMINI_DATA_DIR"])
usage = json.load(open(home + ".truth.json"))["usage"].values()
tokens = sum(sum(row[1:]) for row in usage)
print(json.dumps({"totals": {"totalTokens": tokens}}))
"""

# It says the same of every home.
EXPORTER = """\
print("# TYPE gemini_cli_turns_total counter")
print('gemini_cli_turns_total{model="m",project="p"} TURNS')
"""


def program(path: Path, source: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{source}")
    path.chmod(0o755)
    return path


@pytest.fixture
def fake_rival(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a program in ccusage's place."""
    path = program(tmp_path / "ccusage", RIVAL)
    monkeypatch.setattr(rival, "install", lambda: path)


@pytest.fixture
def fake_exporter(tmp_path: Path) -> Callable[[int], tuple[str, str]]:
    """Makes an exporter that finds so many turns in each home, and names it on the command line."""

    def make(turns: int) -> tuple[str, str]:
        source = EXPORTER.replace("TURNS", str(turns))
        return "--command", str(program(tmp_path / "exporter", source))

    return make


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Adds a step `probe` whose only row has a value; 10 is required, 5 the goal."""

    def add(value: float) -> None:
        rows = [Row("a probe", value=value, limit=10, goal=5, unit="ms")]
        monkeypatch.setitem(STEPS, "probe", lambda _: iter(rows))

    return add


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (Row("", value=4.9, limit=10, goal=5), "goal"),
        (Row("", value=5, limit=10, goal=5), "goal"),
        (Row("", value=10, limit=10, goal=5), "ok"),
        (Row("", value=10.1, limit=10, goal=5), "MISSED"),
        (Row("", value=1, limit=0, goal=0), "MISSED"),
        (Row("", value=5, goal=5), "goal"),
        (Row("", value=99, goal=5), "ok"),
        (Row("", note="skipped: no strace"), "skipped: no strace"),
    ],
)
def test_a_row_is_judged_by_what_is_required_and_then_by_its_goal(row: Row, verdict: str) -> None:
    assert row.verdict == verdict
    assert row.missed == (verdict == "MISSED")


def test_the_table_is_markdown_and_its_columns_stand_below_each_other() -> None:
    rows = [Row("first", "1 s", "2 s", 0.5, 2, 1), Row("a longer one", value=123.4, unit="ms")]
    assert render(rows, judged=True).splitlines() == [
        "| what         | ours | rival |  value | must be | goal | verdict |",
        "| ------------ | ---: | ----: | -----: | ------: | ---: | ------- |",
        "| first        |  1 s |   2 s |    0.5 |       2 |    1 | goal    |",
        "| a longer one |      |       | 123 ms |         |      |         |",
    ]


def test_a_table_that_is_not_judged_has_notes_but_no_verdicts() -> None:
    rows = [Row("a", value=9, limit=1, goal=1), Row("b", note="skipped")]
    verdicts = [line.split("|")[-2].strip() for line in render(rows, judged=False).splitlines()]
    assert verdicts[2:] == ["", "skipped"]


@pytest.mark.parametrize(("value", "code"), [(4, 0), (10, 0), (11, 1)])
def test_only_a_missed_requirement_is_a_failure(
    value: float,
    code: int,
    probe: Callable[[float], None],
    fake_exporter: Callable[[int], tuple[str, str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    probe(value)
    assert main(["--only", "probe", *fake_exporter(0)]) == code
    assert ("MISSED" in capsys.readouterr().out) == bool(code)


def test_below_full_scale_a_missed_requirement_is_no_failure(
    probe: Callable[[float], None], fake_exporter: Callable[[int], tuple[str, str]]
) -> None:
    probe(11)
    assert main(["--only", "probe", "--scale", "0.5", *fake_exporter(0)]) == 0


def test_a_step_that_fails_is_a_failure_and_the_others_go_on(
    probe: Callable[[float], None],
    fake_exporter: Callable[[int], tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(_: Subject) -> Iterator[Row]:
        yield Row("what was measured before")
        raise CommandError("it broke")

    probe(1)
    monkeypatch.setitem(STEPS, "broken", broken)
    assert main(["--only", "broken", "--only", "probe", *TINY, *fake_exporter(0)]) == 1
    shown = capsys.readouterr()
    assert "broken failed: it broke" in shown.err
    assert [line.split("|")[1].strip() for line in shown.out.splitlines()[2:5]] == [
        "what was measured before",
        "broken",
        "a probe",
    ]


def test_an_exporter_that_counts_what_is_not_there_is_not_measured(
    fake_exporter: Callable[[int], tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--only", "restart", *TINY, *fake_exporter(3)]) == 1
    assert "gemini_cli_turns_total p m: 3 instead of 0" in capsys.readouterr().err


def test_an_exporter_that_misses_what_is_there_fails_its_step(
    fake_rival: None,
    fake_exporter: Callable[[int], tuple[str, str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--only", "jsonl", *TINY, *fake_exporter(0)]) == 1
    assert "jsonl failed" in capsys.readouterr().err


@pytest.mark.parametrize(("counted", "excess"), [(1_000, 0), (1_009, 0.009), (991, -0.009)])
def test_a_rival_may_count_a_little_more_or_less(counted: int, excess: float) -> None:
    assert rival.excess(report(counted), THOUSAND) == pytest.approx(excess)


@pytest.mark.parametrize("counted", [0, 980, 1_020])
def test_a_rival_that_reads_something_else_is_no_rival(counted: int) -> None:
    with pytest.raises(CommandError, match=re.escape(f"{counted / 1_000 - 1:+.2%} tokens")):
        rival.excess(report(counted), THOUSAND)


def report(tokens: int) -> Run:
    """A run of ccusage that counted so many tokens."""
    return Run(1.0, 1.0, 1, b'{"totals": {"totalTokens": %d}}' % tokens)


def test_every_step_runs_and_finds_the_truth(
    fake_rival: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(TINY) == 0
    shown = capsys.readouterr()
    assert shown.err.split() == [word for name in STEPS for word in ("bench:", name)]
    values = [line.split("|")[4].strip() for line in shown.out.splitlines() if "|" in line][2:]
    assert len(values) == 18
    assert values.count("") <= 2  # one row is for information, one needs strace


@pytest.mark.parametrize("arguments", [["--runs", "0"], ["--scale", "0"], ["--only", "nothing"]])
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)


TRUTH = Truth(
    usage={("p", "m"): Usage(2, 30, 40, 5, 6, 0)},
    calls={("p", "m", "glob"): Calls(3, 1, 0)},
    sessions={"p": 1},
)
EXPOSED = """\
gemini_cli_turns_total{project="p",model="m"} 2
gemini_cli_tokens_total{project="p",model="m",kind="input"} 30
gemini_cli_tokens_total{project="p",model="m",kind="cached"} 40
gemini_cli_tokens_total{project="p",model="m",kind="output"} 5
gemini_cli_tokens_total{project="p",model="m",kind="thoughts"} 6
gemini_cli_tokens_total{project="p",model="m",kind="tool"} 0
gemini_cli_tool_calls_total{project="p",model="m",tool="glob"} 3
gemini_cli_tool_errors_total{project="p",model="m",tool="glob"} 1
gemini_cli_tool_cancellations_total{project="p",model="m",tool="glob"} 0
gemini_cli_sessions_total{project="p"} 1
gemini_cli_exporter_ledger_turns 2
"""


@pytest.mark.parametrize(
    ("old", "new", "differences"),
    [
        ("", "", []),
        ("} 40", "} 41", ["gemini_cli_tokens_total p m cached: 41 instead of 40"]),
        (
            'errors_total{project="p"',
            'errors_total{project="q"',
            [
                "gemini_cli_tool_errors_total p m glob: 0 instead of 1",
                "gemini_cli_tool_errors_total q m glob: 1 instead of 0",
            ],
        ),
        (
            'gemini_cli_sessions_total{project="p"} 1\n',
            "",
            ["gemini_cli_sessions_total p: 0 instead of 1"],
        ),
        ("ledger_turns 2", "ledger_turns 9", []),
    ],
    ids=["true", "wrong", "another project", "missing", "of its own state"],
)
def test_each_series_that_is_not_true_is_named(old: str, new: str, differences: list[str]) -> None:
    assert verify.differences(EXPOSED.replace(old, new), TRUTH) == differences


def test_a_run_counts_the_children_of_the_command() -> None:
    child = "import time; text = b'x' * 96_000_000; time.sleep(0.2)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    done = process.run([sys.executable, "-c", parent], ENV)
    assert done.peak > 96_000_000
    assert done.wall > 0.2
    assert done.cpu > 0


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["sh", "-c", "echo no space left >&2; exit 3"], "sh exited 3: no space left"),
        (["/nowhere/exporter"], "cannot run /nowhere/exporter"),
    ],
)
def test_a_command_that_fails_is_not_measured(command: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        process.run(command, ENV)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_openings_of_the_wanted_files_are_counted(tmp_path: Path) -> None:
    wanted, other = tmp_path / "wanted", tmp_path / "other"
    for path in (wanted, other):
        path.touch()
    command = ["cat", str(wanted), str(other), str(wanted)]
    assert process.opened(command, ENV, {str(wanted)}) == 2


def test_a_process_is_measured_from_outside() -> None:
    pid = os.getpid()
    before, read = process.cpu_seconds(pid), process.characters_read(pid)
    size = len(Path(__file__).read_bytes())
    assert process.characters_read(pid) - read >= size
    assert process.cpu_seconds(pid) > before
    assert process.status(pid, "VmHWM") >= process.status(pid, "VmRSS") > 1_000
    assert process.status(pid, "Threads") >= 1


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo the ledger is locked >&2; exit 1", "serve exited 1: the ledger is locked"),
        ("echo msg=serving url=http://127.0.0.1:1/metrics >&2; sleep 60", "serve did not answer"),
    ],
    ids=["ends", "is not there"],
)
def test_a_server_that_does_not_serve_is_told_with_its_last_words(
    script: str, message: str, tmp_path: Path
) -> None:
    command = ["sh", "-c", f"exec 2>&2; {script}"]
    with (
        pytest.raises(CommandError, match=message),
        server.running(command, ENV, tmp_path / "log"),
    ):
        pass


def test_a_home_is_made_once_and_again_if_it_was_left_unfinished(tmp_path: Path) -> None:
    plan = homes.many(2, 1)
    place, truth = homes.home(tmp_path, plan)
    (transcript, _) = homes.transcripts(place)
    whole = transcript.read_bytes()
    transcript.write_bytes(b"")
    assert homes.home(tmp_path, plan) == (place, truth)
    assert not transcript.read_bytes()
    (tmp_path / f"{place.name}.truth.json").unlink()
    assert homes.home(tmp_path, plan) == (place, truth)
    assert transcript.read_bytes() == whole


def test_different_plans_have_different_homes(tmp_path: Path) -> None:
    plans = [homes.many(2, 1), homes.many(2, 2), homes.standard("json", 0.01), homes.long(0.001)]
    assert len({homes.home(tmp_path, plan)[0] for plan in plans}) == len(plans)


def test_a_ledger_is_made_once_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = ledgers.with_turns(tmp_path, 300)
    made = path.stat()
    assert ledgers.with_turns(tmp_path, 300) == path
    assert path.stat() == made
    assert list(tmp_path.iterdir()) == [path]
