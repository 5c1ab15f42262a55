"""Run as an ordinary user: starts a systemd manager of this user and, under it, the exporter.

Prints what was seen as one JSON object; `HOME` holds the unit, which logs to `HOME`/log.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

_UNIT: Final = "gemini-cli-exporter"
_PATIENCE: Final = 20.0

_Result = TypeVar("_Result")


def main(systemd: str) -> None:
    """Start `systemd` as a user's manager, then start, ask and stop the unit."""
    seen: dict[str, object] = {}
    log = Path.home() / "log"
    with subprocess.Popen([systemd, "--user", "--log-target=null"]) as manager:
        try:
            _soon(lambda: _ctl("is-system-running") == "running" or None)
            _ctl("start", _UNIT)
            seen["started"] = _state()
            address = _soon(lambda: re.search(r"url=(\S+)/metrics", _text(log)))
            if address is not None:
                seen["ready"] = _soon(lambda: _page(f"{address[1]}/-/ready"))
                seen["metrics"] = _soon(lambda: _page(f"{address[1]}/metrics"))
            _ctl("stop", _UNIT)
            seen["stopped"] = _state()
        finally:
            manager.terminate()
    seen["log"] = _text(log)
    print(json.dumps(seen))


def _ctl(*words: str) -> str:
    command = ("systemctl", "--user", *words)
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _state() -> dict[str, str]:
    shown = _ctl("show", _UNIT, "--property=ActiveState,Result,ExecMainStatus")
    return dict(line.split("=", 1) for line in shown.splitlines())


def _page(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=_PATIENCE) as response:
            return str(response.read(), "utf-8")
    except OSError:
        return None


def _text(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""


def _soon(what: Callable[[], _Result | None]) -> _Result | None:
    """Return what there is as soon as there is something, or None when patience has run out."""
    end = time.monotonic() + _PATIENCE
    while (found := what()) is None and time.monotonic() < end:
        time.sleep(0.05)
    return found


if __name__ == "__main__":
    main(sys.argv[1])
