"""The container: its file is sound, and its steps, run here, make a program that can be watched."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter import __version__
from tests.deploy.tools import DEPLOY, PROJECT, need, printed

FILE = DEPLOY / "Containerfile"
PREFIX = "/opt/gemini-cli-exporter"
PORT = "9742"

pytestmark = pytest.mark.timeout(300)


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the file, each as its name and the rest on one line."""
    text = re.sub(r"^#.*\n", "", FILE.read_text("utf-8"), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines) if name]


def every(wanted: str) -> list[str]:
    return [rest for name, rest in instructions() if name == wanted]


def environment() -> dict[str, str]:
    return dict(part.split("=", 1) for line in every("ENV") for part in shlex.split(line))


def test_hadolint_finds_no_fault() -> None:
    printed(need("hadolint"), FILE)


def test_both_stages_stand_on_one_pinned_image() -> None:
    (base,) = {line.split()[0] for line in every("FROM")}
    assert re.fullmatch(r"docker\.io/library/python:3\.\d+\.\d+-slim-[a-z]+", base)
    assert f'org.opencontainers.image.base.name="{base}"' in every("LABEL")[0]


def test_it_does_not_run_as_root() -> None:
    assert every("USER") == ["1000:1000"]


def test_the_ledger_lies_in_the_volume_and_whoever_runs_it_may_write_there() -> None:
    (volume,) = every("VOLUME")
    assert Path(environment()["GEMINI_CLI_EXPORTER_LEDGER_PATH"]).parent == Path(volume)
    assert f"install --directory --mode=1777 {volume}" in every("RUN")


def test_all_that_is_copied_is_let_through() -> None:
    ignored = (DEPLOY / "Containerfile.dockerignore").read_text("utf-8").splitlines()
    let_through = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert ignored[0] == "*"
    assert let_through == {source for source, _ in copied()}


def copied() -> list[tuple[str, str]]:
    """Return what is copied from the repository, each with where it goes."""
    found = []
    for line in every("COPY"):
        if not line.startswith("--from"):
            *sources, target = line.split()
            found += [(source, target) for source in sources]
    return found


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first stage makes, of nothing but what it copies."""
    folder = tmp_path_factory.mktemp("container")
    source, prefix = folder / "src", folder / "opt"
    source.mkdir()
    for name, target in copied():
        if (PROJECT / name).is_dir():
            shutil.copytree(PROJECT / name, source / target)
        else:
            shutil.copy(PROJECT / name, source / target)
    step = every("RUN")[0].replace(PREFIX, shlex.quote(str(prefix)))
    (workdir,) = every("WORKDIR")
    step = step.replace(f"file://{workdir}", source.as_uri())
    here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # Its own cache is no part of an image, but here it spares downloads.
    printed("sh", "-c", step.replace("--no-cache-dir", ""), cwd=source, environ={"PATH": here})
    return prefix


@pytest.fixture
def port(prefix: Path, tmp_path: Path) -> Iterator[str]:
    """The port where the program serves that the image would start, with the image's variables."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environ = {**environment(), "HOME": "/nonexistent"}
    environ["PATH"] = environ["PATH"].replace(PREFIX, str(prefix)).replace("$PATH", os.defpath)
    environ["GEMINI_DIR"] = str(tmp_path / "gemini")
    environ["GEMINI_CLI_EXPORTER_LEDGER_PATH"] = str(tmp_path / "ledger.db")
    listen = environ["GEMINI_CLI_EXPORTER_WEB_LISTEN_ADDRESS"].replace(PORT, port)
    environ["GEMINI_CLI_EXPORTER_WEB_LISTEN_ADDRESS"] = listen
    (entry,) = map(json.loads, every("ENTRYPOINT"))
    program = shutil.which(entry[0], path=environ["PATH"])
    assert program == str(prefix / "bin" / "gemini-cli-exporter")
    with subprocess.Popen([program], env=environ, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "msg=serving" in line:
                break
        yield port
        process.terminate()
        said += process.communicate(timeout=30)[1]
        assert process.returncode == 0, "".join(said)


def checked(prefix: Path, port: str) -> int:
    """Return the exit status of the image's health check."""
    (line,) = every("HEALTHCHECK")
    command = json.loads(line.partition(" CMD ")[2])
    assert command[0] == "python"
    command = [str(prefix / "bin" / "python"), *command[1:-1], command[-1].replace(PORT, port)]
    return subprocess.run(command, stderr=subprocess.DEVNULL, timeout=30, check=False).returncode


def test_the_built_program_can_push(prefix: Path) -> None:
    code = "import exporter.outputs.push, exporter.outputs.sender_grpc"
    printed(prefix / "bin" / "python", "-c", code, cwd=prefix)


def test_the_built_program_tells_its_version(prefix: Path) -> None:
    printed_version = printed(prefix / "bin" / "gemini-cli-exporter", "--version")
    assert printed_version == f"gemini-cli-exporter {__version__}\n"


def test_the_health_check_passes_while_the_program_serves(prefix: Path, port: str) -> None:
    assert checked(prefix, port) == 0


def test_the_health_check_fails_when_nothing_serves(prefix: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert checked(prefix, str(closed.getsockname()[1])) != 0
