"""The user unit: sound, and really started by the manager of an ordinary user."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.deploy.tools import DEPLOY, PROJECT, need, printed
from tests.support import dumps, gemini, header, user

UNIT: Final = DEPLOY / "systemd" / "gemini-cli-exporter.service"
SANDBOX: Final = DEPLOY / "systemd" / "sandbox.conf"
SOMEBODY: Final = 4242
"""The id of a user who has no rights at all."""
CGROUP: Final = f"gemini-cli-exporter-test-{os.getpid()}"

# A manager runs only where systemd seems to have booted the machine, in a control group of its own.
# The folders are bound to where that user may reach them.
PREPARE: Final = """
set -e
mount -t tmpfs none /run
mkdir -p /run/systemd/system /run/systemd/unit-root /run/systemd/mount-rootfs /run/user
chown "$SOMEBODY" /run/user
bind() { mkdir "/run/$1"; mount --bind "$2" "/run/$1"; }
bind home "$1"
bind python "$2"
bind packages "$3"
bind project "$4"
for groups in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
    if [ -w "$groups/cgroup.procs" ]; then
        mkdir -p "$groups/$CGROUP"
        echo $$ > "$groups/$CGROUP/cgroup.procs"
        chown -R "$SOMEBODY" "$groups/$CGROUP"
    fi
done
export HOME=/run/home XDG_RUNTIME_DIR=/run/user
export LD_LIBRARY_PATH=/run/python/lib PYTHONHOME=/run/python PYTHONPATH=/run/project
cd /
exec setpriv --reuid "$SOMEBODY" --regid "$SOMEBODY" --clear-groups \\
    "/run/python/$INTERPRETER" -m tests.deploy.manager "$SYSTEMD"
"""


def interpreter() -> Path:
    """Return the interpreter below `sys.base_prefix`."""
    prefix = Path(sys.base_prefix).resolve()
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return (prefix / "bin" / name).relative_to(prefix)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home of a user who has the program, its unit and one turn of Gemini CLI."""
    home = tmp_path / "home"
    program = home / ".local" / "bin" / "gemini-cli-exporter"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        "export LD_LIBRARY_PATH=/run/python/lib PYTHONHOME=/run/python\n"
        "export PYTHONPATH=/run/packages:/run/project\n"
        f'exec /run/python/{interpreter()} -m exporter "$@"\n'
    )
    program.chmod(0o755)
    units = home / ".config" / "systemd" / "user"
    dropins = units / f"{UNIT.name}.d"
    dropins.mkdir(parents=True)
    shutil.copy(UNIT, units)
    (dropins / "log.conf").write_text("[Service]\nStandardError=file:%h/log\n")
    (home / ".config" / "gemini-cli-exporter.env").write_text(
        "GEMINI_CLI_EXPORTER_WEB_LISTEN_ADDRESS=127.0.0.1:0\n"
    )
    chats = home / ".gemini" / "tmp" / "shop" / "chats"
    chats.mkdir(parents=True)
    lines = b"".join(dumps(record) + b"\n" for record in (header(), user(), gemini("m-1")))
    (chats / "session-a.jsonl").write_bytes(lines)
    return home


@pytest.fixture
def environ(tmp_path: Path, home: Path) -> dict[str, str]:
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    return {"HOME": str(home), "XDG_RUNTIME_DIR": str(runtime)}


def test_systemd_finds_no_fault(home: Path, environ: dict[str, str]) -> None:
    unit = home / ".config" / "systemd" / "user" / UNIT.name
    said = printed(need("systemd-analyze"), "verify", "--user", unit, environ=environ)
    assert said == ""


@pytest.mark.parametrize(("sandboxed", "most"), [(False, 6.5), (True, 3.0)])
def test_it_is_exposed_no_more_than_this(
    home: Path, environ: dict[str, str], sandboxed: bool, most: float
) -> None:
    """On systemd's own scale from 0 to 10."""
    unit = home / ".config" / "systemd" / "user" / UNIT.name
    if sandboxed:
        shutil.copy(SANDBOX, unit.with_name(f"{UNIT.name}.d"))
    command = (need("systemd-analyze"), "security", "--user", "--offline=true", "--no-pager")
    said = printed(*command, f"--threshold={int(most * 10)}", unit, environ=environ)
    exposure = re.search(r"exposure level for \S+: ([\d.]+)", said)
    assert exposure is not None
    assert float(exposure[1]) <= most


@pytest.fixture
def seen(home: Path, request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """What the manager saw of the unit; parametrized by whether the sandbox is added."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root can make an ordinary user with a manager")
    paths = (f"{folder}/systemd/systemd" for folder in ("/usr/lib", "/lib"))
    systemd = next((path for path in paths if Path(path).exists()), None)
    if systemd is None:
        pytest.skip("systemd is not installed")
    need("systemctl")
    if request.param:
        dropins = home / ".config" / "systemd" / "user" / f"{UNIT.name}.d"
        shutil.copy(SANDBOX, dropins)
        (home / ".local" / "state" / "gemini-cli-exporter").mkdir(parents=True)
    for path in (home, *home.rglob("*")):
        os.chown(path, SOMEBODY, SOMEBODY)
    environ = {
        "SOMEBODY": str(SOMEBODY),
        "CGROUP": CGROUP,
        "INTERPRETER": str(interpreter()),
        "SYSTEMD": systemd,
    }
    bound = (home, sys.base_prefix, sysconfig.get_path("purelib"), PROJECT)
    try:
        command = (need("unshare"), "--mount", "sh", "-c", PREPARE, "sh", *bound)
        yield json.loads(printed(*command, environ=environ))
    finally:
        for groups in Path("/sys/fs/cgroup").glob(f"**/{CGROUP}"):
            find = ("find", groups, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";")
            subprocess.run(find, check=False)


started = pytest.mark.parametrize("seen", [False, True], ids=["unit", "sandbox"], indirect=True)


@started
def test_an_ordinary_user_can_run_it(seen: dict[str, Any], home: Path) -> None:
    assert seen["started"]["ActiveState"] == "active", seen
    assert seen["ready"] == "ready\n"
    assert 'gemini_cli_turns_total{model="gemini-2.5-flash",project="shop"} 1' in seen["metrics"]
    assert seen["stopped"] == {
        "ActiveState": "inactive",
        "Result": "success",
        "ExecMainStatus": "0",
    }
    ledger = home / ".local" / "state" / "gemini-cli-exporter" / "ledger.db"
    assert ledger.stat().st_mode & 0o777 == 0o600
    assert ledger.stat().st_uid == SOMEBODY
