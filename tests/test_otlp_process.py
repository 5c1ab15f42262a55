"""The real program pushes when it is told to, and a receiver that fails delays nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from tests.daemon import free_address
from tests.day import Scribe
from tests.otlp_answers import HANG
from tests.otlp_program import DAY, INTERVAL, MODELS, PROTOCOL, TEMPORALITY, TIMEOUT, Pushing, until
from tests.otlp_sink import GrpcSink, Inbox, Sink
from tests.program import PATIENCE

SECRET: Final = "s3cret-of-ana"
EXPORTS: Final = "gemini_cli_exporter_otlp_exports_total"
FAILURES: Final = "gemini_cli_exporter_otlp_export_failures_total"
TURNS: Final = "gemini_cli_turns_total"
HEADERS: Final = {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer%20{SECRET}"}
FAILING: Final = {
    "dead http": (None, "http/protobuf"),
    "dead grpc": (None, "grpc"),
    "hanging http": (Sink, "http/protobuf"),
    "hanging grpc": (GrpcSink, "grpc"),
}


@pytest.fixture
def home(tmp_path: Path) -> tuple[Path, Scribe]:
    """A root with one turn of yesterday, and who writes it."""
    scribe = Scribe()
    scribe.write(tmp_path / "gemini", "shop", MODELS[0], ago=DAY)
    return tmp_path / "gemini", scribe


Start = Callable[..., Pushing]


@pytest.fixture
def start(tmp_path: Path, home: tuple[Path, Scribe]) -> Iterator[Start]:
    """Starts the program with options and an environment; all are killed after the test."""
    numbers = count()
    with ExitStack() as running:

        def begin(*options: str, **environ: str) -> Pushing:
            folder = tmp_path / f"exporter-{next(numbers)}"
            folder.mkdir()
            program = Pushing(folder, home[0], *options, environ=environ)
            running.enter_context(program).start()
            return program

        yield begin


@pytest.mark.parametrize(("kind", "protocol"), FAILING.values(), ids=FAILING)
def test_a_receiver_that_fails_delays_nothing(
    start: Start, home: tuple[Path, Scribe], kind: type[Inbox] | None, protocol: str
) -> None:
    root, scribe = home
    environ = {PROTOCOL: protocol, INTERVAL: "50", TIMEOUT: "300", **HEADERS}
    with ExitStack() as ends:
        url = f"http://{free_address()}"
        if kind is not None:
            inbox = ends.enter_context(kind())
            inbox.answer(HANG)
            url = inbox.url
        program = start("--otlp.endpoint", url, "--log.level", "debug", **environ)
        program.metrics(lambda shown: shown.value(FAILURES) >= 1)
        latencies = []
        for number in range(2, 5):
            scribe.write(root, "shop", MODELS[0])
            began = time.monotonic()
            program.metrics(lambda shown, number=number: shown.value(TURNS) >= number)  # type: ignore[misc]
            latencies.append(time.monotonic() - began)
        assert min(latencies) < 1, latencies
        shown = program.metrics(lambda shown: shown.value(FAILURES) >= 3)
        # They are two numbers, read one after the other.
        assert 0 <= shown.value(EXPORTS) - shown.value(FAILURES) <= 1
        assert ended_soon(program)
    lines = [line for line in program.log.splitlines() if 'msg="cannot push"' in line]
    assert len(lines) >= 3
    assert ["level=error" in line for line in lines] == [True] + [False] * (len(lines) - 1)
    assert SECRET not in program.log
    assert "Traceback" not in program.log


def ended_soon(program: Pushing) -> bool:
    """End the program well; tell whether it waited for no more than its last request."""
    began = time.monotonic()
    assert program.stop() == 0
    return time.monotonic() - began < 15


def test_the_end_waits_some_seconds_for_a_first_request_that_hangs(start: Start) -> None:
    with Sink() as sink, GrpcSink() as grpc_sink, ThreadPoolExecutor() as pool:
        programs = []
        for inbox, protocol in ((sink, "http/protobuf"), (grpc_sink, "grpc")):
            inbox.answer(HANG)
            options = ("--otlp.endpoint", inbox.url)
            programs.append(start(*options, **{PROTOCOL: protocol, TIMEOUT: "60000"}))
            inbox.wait_for_requests()
        assert list(pool.map(ended_soon, programs)) == [True, True]


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_failures_take_no_memory(start: Start, home: tuple[Path, Scribe]) -> None:
    """Each request here would take a megabyte if it were kept."""
    root, scribe = home
    for number in range(30):
        scribe.write(root, f"project-{number // 3}", MODELS[number % 3], ago=DAY)
    url = f"http://{free_address()}"
    environ = {INTERVAL: "5", TIMEOUT: "500"}
    programs = [
        start("--otlp.endpoint", url, **environ, **{PROTOCOL: protocol})
        for protocol in ("http/protobuf", "grpc")
    ]
    before, after = ([memory(program, failures) for program in programs] for failures in (40, 110))
    grown = [new - old for old, new in zip(before, after, strict=True)]
    assert max(grown) < 40 << 20


def memory(program: Pushing, failures: int) -> int:
    """Return the bytes that a program has after so many requests failed."""
    until(lambda: program.metrics().value(FAILURES) >= failures, program.log)
    status = Path(f"/proc/{program.pid}/status").read_text()
    resident = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert resident is not None
    return int(resident[1]) * 1024


# What switches it on, and what it needs


LIBRARIES: Final = re.compile(
    r"^import time:.*\| +((?:opentelemetry|grpc|requests|urllib3|google\.protobuf)\S*)$",
    re.MULTILINE,
)
"""In the output of PYTHONPROFILEIMPORTTIME."""


@pytest.mark.parametrize("switched_on", [False, True], ids=["off", "on"])
def test_only_an_option_imports_the_libraries_and_pushes(start: Start, switched_on: bool) -> None:
    """Never a variable that Gemini CLI reads too."""
    with Sink() as sink:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.url, INTERVAL: "10", TEMPORALITY: "delta"}
        program = start(*["--otlp"] * switched_on, PYTHONPROFILEIMPORTTIME="1", **environ)
        program.metrics()
        if switched_on:
            sink.wait_for_requests()
        assert program.stop() == 0
        assert bool(sink.requests) == switched_on
    found = set(LIBRARIES.findall(program.log))
    assert {"opentelemetry", "requests"} <= found if switched_on else found == set()
    assert "grpc" not in found


@pytest.mark.skipif(sys.platform != "linux", reason="sockets are read from /proc")
def test_without_pages_it_pushes_and_listens_nowhere(
    start: Start, home: tuple[Path, Scribe]
) -> None:
    environ = {"OTEL_RESOURCE_ATTRIBUTES": "team=platform,owner=ana", "OTEL_SERVICE_NAME": "cli"}
    with Sink() as sink:
        program = start("--no-web", "--otlp.endpoint", sink.url, **environ, **HEADERS)
        sink.wait(lambda points: any(point.name == "gemini_cli.turns" for point in points))
        assert listening(program.pid) == set()
        home[1].write(home[0], "fresh", MODELS[0])
        sink.wait(
            lambda points: any(
                dict(point.attributes).get("project") == "fresh" and point.value for point in points
            )
        )
        assert program.stop() == 0
        point = sink.points[-1]
        assert sink.requests[0].headers["authorization"] == f"Bearer {SECRET}"
    assert point.resource["service.name"] == "gemini-cli-exporter"
    assert (point.resource["team"], point.resource["owner"]) == ("platform", "ana")
    assert "url=" not in program.log


def test_with_pages_it_listens(start: Start) -> None:
    program = start()
    program.metrics()
    assert len(listening(program.pid)) == 1


def listening(process: int) -> set[str]:
    """Return the sockets of a process at which it takes connections."""
    links = (os.readlink(file) for file in Path(f"/proc/{process}/fd").iterdir())
    own = {link.removeprefix("socket:[").rstrip("]") for link in links if link.startswith("socket")}
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]
    ]
    return own & {row[9] for row in rows if row[3] == "0A"}


# What is refused


def refused(folder: Path, *arguments: str, **environ: str) -> tuple[int, str]:
    """Run the program to its end; return its code and what it said as an error, in one line."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "exporter", *arguments, "--log.level", "error"),
            *("--ledger.path", folder / "ledger.db", "--transcripts.root", folder),
        ],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stdout == ""
    assert done.stderr.startswith("gemini-cli-exporter: error: ")
    assert done.stderr.count("\n") == 1
    return done.returncode, done.stderr.removeprefix("gemini-cli-exporter: error: ").strip()


def test_without_pages_and_receiver_nothing_is_left_to_do(tmp_path: Path) -> None:
    found = refused(tmp_path, "--no-web", OTEL_EXPORTER_OTLP_ENDPOINT="http://localhost:4318")
    assert found == (2, "--no-web: nothing is left to do without --otlp")


@pytest.mark.parametrize(
    ("command", "name", "text"),
    [
        ("serve", "OTEL_EXPORTER_OTLP_HEADERS", f"api key={SECRET}"),
        ("check", "OTEL_EXPORTER_OTLP_HEADERS", f'api-key="{SECRET}"'),
        ("check", "OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("check", "OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE", "/no/such/ca.pem"),
    ],
)
def test_a_wrong_variable_is_named(tmp_path: Path, command: str, name: str, text: str) -> None:
    code, message = refused(tmp_path, command, "--otlp", **{name: text})
    assert code == 2
    assert message.startswith(f"{name}: ")
    assert SECRET not in message


@pytest.mark.parametrize(
    ("library", "protocol", "command"),
    [
        ("opentelemetry", "http/protobuf", "serve"),
        ("opentelemetry", "http/protobuf", "check"),
        ("grpc", "grpc", "serve"),
        ("grpc", "grpc", "check"),
    ],
)
def test_without_the_libraries_it_says_how_to_get_them(
    tmp_path: Path, library: str, protocol: str, command: str
) -> None:
    blocker = tmp_path / "blocked" / f"{library}.py"
    blocker.parent.mkdir()
    blocker.write_text(f"raise ModuleNotFoundError('blocked', name={library!r})")
    environ = {"PYTHONPATH": str(blocker.parent), PROTOCOL: protocol}
    assert refused(tmp_path, command, "--web.listen-address=127.0.0.1:0", "--otlp", **environ) == (
        2,
        f"--otlp: install it with the libraries, as gemini-cli-exporter[otlp]: no module {library}",
    )
