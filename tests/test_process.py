"""The installed program: started, asked, signalled and killed, on homes that Gemini CLI wrote."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from exporter.answers import Answers
from exporter.demo import Plan, Truth, write_home
from exporter.outputs.prometheus import Exposition
from exporter.outputs.web import WebServer, bind
from exporter.service import leaving
from exporter.transcripts.reader import Reader, Reading
from tests.program import PATIENCE, Metrics, Program
from tests.real import Expected, RealSet, ToolCount, Usage
from tests.support import dumps, gemini, header, home

COMMAND = Path(sysconfig.get_path("scripts")) / "gemini-cli-exporter"
PROJECTS = "0.8.2+0.22.4+0.28.2+0.36.0+0.45.2+0.61.0-two-projects-years"
TURNS = "gemini_cli_turns_total"
OPENER = build_opener(ProxyHandler({}))

T = TypeVar("T")


class Answer(NamedTuple):
    """What a page answered."""

    status: int
    text: str


def get(url: str, **headers: str) -> Answer:
    """Ask for a page."""
    try:
        request = Request(url, headers=headers)
        response: HTTPResponse | HTTPError = OPENER.open(request, timeout=PATIENCE)
    except HTTPError as error:
        response = error
    with response:
        return Answer(response.status or 0, response.read().decode())


class Served(Program):
    """The program with options of its own, and with more questions to it."""

    def __init__(self, folder: Path, roots: list[Path], *options: str) -> None:
        super().__init__(folder, roots)
        self._command += options
        self.ledger = folder / "ledger.db"

    @property
    def pid(self) -> int:
        """The process of the present life."""
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        """Where its pages are, as its log says."""
        return until(lambda: re.search(r"url=(http://[^/\s]+)/", self.log))[1]

    def end(self, how: signal.Signals) -> int:
        """Send a signal and return the exit code."""
        return self._end(how)


def until(look: Callable[[], T | None]) -> T:
    """Look again and again until there is something; fail when patience has run out."""
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return found


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command to its end; its standard error is not a terminal."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("GEMINI_")}
    return subprocess.run(
        [COMMAND, *arguments], env=environ, capture_output=True, text=True, timeout=PATIENCE
    )


def options(ledger: Path, *roots: Path) -> list[str | Path]:
    """Return the flags for a ledger and roots."""
    flags: list[str | Path] = ["--ledger.path", ledger]
    for root in roots:
        flags += ["--transcripts.root", root]
    return flags


def append(path: Path, *records: dict[str, Any]) -> None:
    """Append records as the CLI does: one write a line, after making the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for record in records:
        with path.open("ab") as file:
            file.write(dumps(record) + b"\n")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts the program on roots, with more options; all are killed after the test."""
    with ExitStack() as running:

        def start(*roots: Path, more: tuple[str, ...] = ()) -> Served:
            program = running.enter_context(Served(tmp_path, list(roots), *more))
            program.start()
            return program

        yield start


Serve = Callable[..., Served]


class Running(NamedTuple):
    """A program that follows a copy of a real home."""

    program: Served
    root: Path
    chats: Path


@pytest.fixture(scope="module")
def running(
    real_sets: dict[str, RealSet], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    """One for all tests that only add to it or ask it."""
    folder = tmp_path_factory.mktemp("running")
    root = real_sets["0.61.0-subagent"].copy_to(folder / "gemini")
    with Served(folder, [root]) as program:
        program.start()
        program.metrics()
        yield Running(program, root, next(root.glob("tmp/*/chats")))


# Following transcripts


def test_a_real_home_is_served_exactly(serve: Serve, real_sets: dict[str, RealSet]) -> None:
    real = real_sets[PROJECTS]
    assert serve(real.gemini).metrics().counted == real.expected()


def test_appended_turns_are_shown_within_a_second(running: Running) -> None:
    program, _, chats = running
    (chat,) = chats.glob("session-*.jsonl")
    before = program.metrics().value(TURNS)
    latencies = []
    for number in range(1, 6):
        begun = time.monotonic()
        append(chat, gemini(f"new-{number}", time=now()), {"$set": {"lastUpdated": now()}})
        while program.metrics().value(TURNS) < before + number:
            assert time.monotonic() - begun < PATIENCE
        latencies.append(time.monotonic() - begun)
    assert min(latencies) < 1, latencies


@pytest.mark.parametrize(
    "place",
    ["shop/chats/session-new-1.jsonl", "{here}/session-new-2.jsonl", "{here}/5e551001/a6e27.jsonl"],
    ids=["project", "session", "subagent"],
)
def test_a_new_place_is_noticed_while_running(running: Running, place: str) -> None:
    program, root, chats = running
    before = program.metrics().value(TURNS)
    path = root / "tmp" / place.format(here=chats.relative_to(root / "tmp"))
    begun = time.monotonic()
    append(path, header(path.stem), gemini(path.stem, model="gemini-new", time=now()))
    shown = program.metrics(lambda shown: shown.value(TURNS) == before + 1)
    assert time.monotonic() - begun < 10, "it waited for no rescan, which is every 30 s"
    project = path.relative_to(root / "tmp").parts[0]
    assert shown.counted.usage[project, "gemini-new"].turns > 0


def test_a_root_that_is_not_there_is_waited_for_with_one_line(
    serve: Serve, real_sets: dict[str, RealSet], tmp_path: Path
) -> None:
    root = tmp_path / "later"
    program = serve(root, more=("--transcripts.rescan-interval", "50ms"))
    program.metrics(lambda shown: shown.value("gemini_cli_exporter_scans_total") > 3)
    assert program.log.count(f'msg="waiting for a folder that does not exist yet" root={root}') == 1
    real = real_sets["0.61.0-interactive"]
    real.copy_to(tmp_path / "elsewhere").rename(root)
    assert program.metrics(lambda shown: shown.value(TURNS) > 0).counted == real.expected()
    assert program.log.count("waiting for a folder") == 1
    assert program.log.count(f'msg="the folder is there now" root={root}') == 1


def test_listening_beyond_loopback_is_warned_of_once_and_names_have_to_be_allowed(
    serve: Serve, real_sets: dict[str, RealSet]
) -> None:
    more = ("--web.listen-address", "0.0.0.0:0", "--web.allowed-host", "metrics.example")
    program = serve(real_sets["0.61.0-plain"].gemini, more=more)
    program.metrics()
    assert program.log.count("level=warn") == 1
    assert program.log.count("anyone who can reach these addresses can read the metrics") == 1
    page = f"{program.url}/-/healthy"
    hosts = {name: get(page, Host=name).status for name in ("metrics.example", "evil.example")}
    assert hosts == {"metrics.example": 200, "evil.example": 421}


# Ending


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_soon_and_well(
    serve: Serve, real_sets: dict[str, RealSet], how: signal.Signals
) -> None:
    program = serve(real_sets["0.61.0-tools"].gemini)
    program.metrics()
    begun = time.monotonic()
    assert program.end(how) == 0
    assert time.monotonic() - begun < 5
    assert program.log.splitlines()[-1].endswith("msg=stopped")
    assert "level=error" not in program.log
    assert "Traceback" not in program.log


def test_a_signal_in_the_middle_of_the_wait_for_work_does_not_hang_it() -> None:
    """The handler runs in the thread that clears the event, whose lock it may hold just then."""
    stop, wake = threading.Event(), threading.Event()
    handle = leaving(stop, wake)
    with wake._cond:  # type: ignore[attr-defined]
        handle(signal.SIGTERM, None)
        assert stop.wait(PATIENCE)
    assert wake.wait(PATIENCE)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    """A home whose first scan takes many transactions."""
    folder = tmp_path_factory.mktemp("large")
    end = datetime(2026, 10, 1, 18, 30, tzinfo=UTC)
    plan = Plan(end, projects=3, sessions=200, subagents=50, turns=10_000, turn_bytes=3_500)
    return folder / ".gemini", write_home(folder, plan)


@pytest.mark.parametrize(("how", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 0)])
def test_ended_during_its_first_scan_it_goes_on_and_counts_nothing_twice(
    serve: Serve, large: tuple[Path, Truth], how: signal.Signals, code: int
) -> None:
    root, truth = large
    program = serve(root)

    def meta_and_turns() -> tuple[bool, int]:
        with closing(sqlite3.connect(f"file:{program.ledger}?mode=ro", uri=True)) as db:
            (complete,) = db.execute("SELECT count(*) FROM meta WHERE key = 'complete'").fetchone()
            (turns,) = db.execute("SELECT count(*) FROM turn").fetchone()
        return bool(complete), turns

    def begun() -> bool:
        try:
            return meta_and_turns()[1] > 0
        except sqlite3.OperationalError:  # the ledger is being made
            return False

    early = get(f"{program.url}/metrics")
    until(begun)
    assert program.end(how) == code
    complete, turns = meta_and_turns()
    assert not complete, "the home is too small for this machine"
    assert 0 < turns < truth.total.turns
    assert early == (503, "The first scan of the transcripts is not complete yet.\n")
    program.start()
    assert program.metrics().counted == Expected(
        {key: Usage(*usage) for key, usage in truth.usage.items()},
        {key: ToolCount(*calls) for key, calls in truth.calls.items()},
    )


class AskingReader(Reader):
    """A reader that asks the pages before each file that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.url = ""
        self.answers: list[tuple[Answer, Answer]] = []

    def ask(self) -> tuple[Answer, Answer]:
        """Return what the metrics and the readiness page answer now."""
        return get(f"{self.url}/metrics"), get(f"{self.url}/-/ready")

    def read(self, *args: Any, **kwargs: Any) -> Reading:
        """Ask, then read."""
        self.answers.append(self.ask())
        return super().read(*args, **kwargs)


def test_a_half_read_history_is_never_shown(real_sets: dict[str, RealSet], tmp_path: Path) -> None:
    """In one process, to be asked at every step: before each file, some of them committed."""
    real = real_sets[PROJECTS]
    reader = AskingReader()
    with home(tmp_path, real.gemini, reader) as scratch:
        pages = Answers(scratch.stats, lambda: None)
        server = WebServer(pages, [bind("127.0.0.1", 0)], version="1")
        server.start()
        reader.url = f"http://{server.addresses[0]}"
        assert reader.ask()[1] == (503, "not ready: the ledger cannot be opened yet\n")
        exposition = Exposition(scratch.ledger, scratch.stats, scratch.clock)
        pages.show(scratch.ledger, exposition)
        scratch.scan()
        metrics, ready = reader.ask()
        server.stop()
    assert len(reader.answers) == 8
    assert {metrics.status for metrics, _ in reader.answers} == {503}
    pending = [re.sub(r"\D", "", ready.text) for _, ready in reader.answers]
    assert pending == sorted(pending, key=int, reverse=True)
    assert ready == (200, "ready\n")
    assert Metrics(metrics.text).counted == real.expected()


# One ledger, one port


@pytest.mark.parametrize("command", ["serve", "once"])
def test_a_second_exporter_on_a_ledger_names_the_first(running: Running, command: str) -> None:
    program = running.program
    address = program.url.removeprefix("http://")
    more = ["--web.listen-address", "127.0.0.1:0", "--log.level", "error"]
    done = run(command, *options(program.ledger, running.root), *more)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"gemini-cli-exporter: error: the ledger {program.ledger} is in use by process"
        f" {program.pid} serving {address}; stop that exporter, or give this one its own"
        " --ledger.path\n"
    )
    assert get(f"{program.url}/-/ready") == (200, "ready\n")


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        more = ["--web.listen-address", address, "--log.level", "error"]
        done = run(*options(tmp_path / "ledger.db", tmp_path), *more)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"gemini-cli-exporter: error: cannot listen on {address}: address already in use;"
        " stop the other program or choose another port with --web.listen-address\n"
    )


# Once


@pytest.mark.parametrize("name", ["0.28.2-long", "0.61.0-long", PROJECTS])
def test_once_prints_the_truth_and_nothing_else(
    real_sets: dict[str, RealSet], tmp_path: Path, name: str
) -> None:
    real = real_sets[name]
    done = run("once", *options(tmp_path / "ledger.db", real.gemini))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("# HELP gemini_cli_turns_total ")
    assert all(re.match(r"# (HELP|TYPE) |\w+(\{.*\})? \S+$", x) for x in done.stdout.splitlines())
    assert Metrics(done.stdout).counted == real.expected()
    if shutil.which("promtool"):
        lint = subprocess.run(
            ["promtool", "check", "metrics"], input=done.stdout, text=True, capture_output=True
        )
        assert (lint.returncode, lint.stdout, lint.stderr) == (0, "", "")


def test_once_and_once_more_shows_the_same_usage(
    real_sets: dict[str, RealSet], tmp_path: Path
) -> None:
    def usage() -> list[str]:
        done = run("once", *options(tmp_path / "ledger.db", real_sets[PROJECTS].gemini))
        lines = done.stdout.splitlines()
        return [line for line in lines if "gemini_cli_" in line and "_exporter_" not in line]

    first = usage()
    assert len(first) > 100
    assert usage() == first


def test_once_on_a_folder_that_is_not_there_says_so_in_one_line(tmp_path: Path) -> None:
    done = run("once", *options(tmp_path / "ledger.db", tmp_path / "missing"))
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert f"root={tmp_path}/missing" in done.stderr
    assert Metrics(done.stdout).value("gemini_cli_exporter_scans_total") == 1


def test_once_at_level_debug_says_what_it_was_told_on_standard_error(tmp_path: Path) -> None:
    done = run(
        "once", *options(tmp_path / "ledger.db", tmp_path), "--log.level=debug", "--log.format=json"
    )
    logged = [json.loads(line)["msg"] for line in done.stderr.splitlines()]
    assert logged[:2] == ["starting", "configuration"]
    assert Metrics(done.stdout).value("gemini_cli_exporter_scans_total") == 1
