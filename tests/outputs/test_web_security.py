"""The page on security, and what a server without a web configuration does not load."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from exporter.outputs import auth, web
from exporter.outputs.web_config import load
from tests.outputs.certificates import Folder

TESTS = Path(__file__).parent.parent
PAGE = (TESTS.parent / "docs" / "security.md").read_text(encoding="utf-8")


def test_the_tests_that_the_page_names_exist() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 30
    assert {name for name in named if f"\ndef {name}(" not in source} == set()


def test_the_limits_that_the_page_names_are_the_real_ones() -> None:
    for limit in (
        f"{web.REQUEST_TIMEOUT:.0f} s for a handshake, {web.REQUEST_TIMEOUT:.0f} s for a request",
        f"{web.RESPONSE_TIMEOUT:.0f} s for an answer, {web.IDLE_TIMEOUT:.0f} s idle",
        f"{web.MAX_CONNECTIONS} connections",
        f"more than {auth._MAX_WAITING} waiting of one address or {auth._MAX_CLIENTS} addresses",
        f"from more than {auth._MAX_CLIENTS} addresses",
        f"their first {auth._BCRYPT_BYTES} bytes",
    ):
        assert limit in PAGE


def test_the_example_on_the_page_is_taken(folder: Folder) -> None:
    example = PAGE.partition("```yaml\n")[2].partition("```")[0]
    hashed = "$2y$10$" + "a" * 53
    folder.put("web.yml", example.replace("$2y$10$…", hashed))
    config = load(folder.config)
    assert config.tls is not None
    assert config.users == {"prometheus": hashed.encode()}
    assert config.headers == ((b"strict-transport-security", b"max-age=31536000"),)


def test_a_server_without_a_web_configuration_loads_nothing_for_one() -> None:
    code = (
        "import sys; from exporter.outputs.web import WebServer, bind;"
        "WebServer(None, [bind('127.0.0.1', 0)], version='1').stop();"
        "print(*{'bcrypt', 'yaml', 'exporter.outputs.auth', 'exporter.outputs.tls',"
        " 'exporter.outputs.web_config'} & set(sys.modules))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert loaded.stdout.strip() == b""
