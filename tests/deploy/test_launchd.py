"""The launchd agent: what it says, and that its command starts the program."""

from __future__ import annotations

import plistlib
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.tools import DEPLOY

PLIST = DEPLOY / "launchd" / "local.gemini-cli-exporter.plist"


@pytest.fixture
def agent() -> dict[str, Any]:
    loaded: dict[str, Any] = plistlib.loads(PLIST.read_bytes())
    return loaded


def test_the_label_is_the_name_of_the_file(agent: dict[str, Any]) -> None:
    assert f"{agent['Label']}.plist" == PLIST.name


def test_it_starts_at_login_and_again_after_a_failure(agent: dict[str, Any]) -> None:
    assert agent["RunAtLoad"] is True
    assert agent["KeepAlive"] == {"SuccessfulExit": False}


def test_what_it_writes_is_readable_by_its_owner_alone(agent: dict[str, Any]) -> None:
    assert agent["Umask"] == 0o077


def test_its_command_becomes_the_program_of_this_home_and_keeps_its_log(
    agent: dict[str, Any], tmp_path: Path
) -> None:
    program = tmp_path / "my home" / ".local" / "bin" / "gemini-cli-exporter"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho $$ $# >&2\nexit 7\n")
    program.chmod(0o755)
    log = tmp_path / "my home" / "Library" / "Logs" / "gemini-cli-exporter.log"
    log.parent.mkdir(parents=True)
    log.write_text("before\n")
    environ = {"HOME": str(tmp_path / "my home"), "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(agent["ProgramArguments"], env=environ) as process:
        assert process.wait(30) == 7
    # The same process id: no shell stays between launchd and the program.
    assert log.read_text() == f"before\n{process.pid} 0\n"
