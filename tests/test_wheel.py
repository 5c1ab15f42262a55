"""The built wheel, installed with its dependencies into an environment that holds nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from exporter import __version__

PROJECT = Path(__file__).parents[1]

pytestmark = pytest.mark.timeout(300)


def run(*command: str | Path, cwd: Path, home: Path) -> str:
    """Run a command outside the checkout and without its settings; return what it printed."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GEMINI_")}
    environ.pop("PYTHONPATH", None)
    environ["HOME"] = str(home)
    done = subprocess.run(
        command, cwd=cwd, env=environ, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder)
    run(*map(str, build), str(PROJECT), cwd=folder, home=Path.home())
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command `gemini-cli-exporter` of a clean environment."""
    environment = tmp_path_factory.mktemp("clean") / "venv"
    # Without pip, which Debian packs apart; ours installs from outside.
    make = (sys.executable, "-m", "venv", "--without-pip", str(environment))
    run(*make, cwd=environment.parent, home=Path.home())
    scripts = environment / ("Scripts" if os.name == "nt" else "bin")
    pip = (sys.executable, "-m", "pip", "--python", str(scripts / "python"), "install", "--quiet")
    run(*pip, wheel, cwd=environment.parent, home=Path.home())
    return scripts / "gemini-cli-exporter"


def test_the_wheel_holds_only_the_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    folders = {name.split("/")[0] for name in names}
    assert folders == {"exporter", f"gemini_cli_exporter-{__version__}.dist-info"}
    assert f"gemini_cli_exporter-{__version__}.dist-info/licenses/LICENSE" in names


def test_the_installed_command_tells_its_version(program: Path, tmp_path: Path) -> None:
    printed = run(program, "--version", cwd=tmp_path, home=tmp_path)
    assert printed == f"gemini-cli-exporter {__version__}\n"


def test_the_installed_command_helps(program: Path, tmp_path: Path) -> None:
    printed = run(program, "--help", cwd=tmp_path, home=tmp_path)
    assert printed.startswith("usage: gemini-cli-exporter")


def test_the_installed_command_reads_an_empty_home_once(program: Path, tmp_path: Path) -> None:
    root, ledger = tmp_path / "empty", tmp_path / "state" / "ledger.db"
    root.mkdir()
    settings = ("--transcripts.root", root, "--ledger.path", ledger)
    printed = run(program, "once", *settings, cwd=tmp_path, home=tmp_path)
    assert f'gemini_cli_exporter_build_info{{version="{__version__}"' in printed


def test_the_installed_command_writes_the_dashboards_and_rules(
    program: Path, tmp_path: Path
) -> None:
    run(program, "assets", tmp_path / "out", cwd=tmp_path, home=tmp_path)
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    names = {path.relative_to(tmp_path / "out") for path in written}
    assert all(
        (tmp_path / "out" / name).read_bytes() == (PROJECT / name).read_bytes() for name in names
    )
    assert {Path("grafana/dashboards/overview.json"), Path("deploy/compose.yaml")} <= names
