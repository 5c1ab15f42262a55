"""Nothing that was said to a model, or by it, leaves the transcripts by any way out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from exporter.outputs.prometheus import OPENMETRICS, TEXT
from exporter.transcripts.lines import MAX_LINE
from tests.program import PATIENCE, Metrics, Program
from tests.support import dumps, gemini, header, user

OPENER = build_opener(ProxyHandler({}))

SESSION = "5ec4e7aa-1111-4222-8333-444455556666"
AGENT = "5ec4e7bb-1111-4222-8333-444455556666"
SESSIONS = {"session": SESSION, "agent": AGENT}

SECRETS = {
    "prompt": "the-merger-is-on-friday",
    "reply": "buy-before-it-is-public",
    "thought": "he-must-not-know-of-this",
    "argument": "drop-table-customers",
    "file": "hidden-plan-of-ana.txt",
    "result": "balance-is-40817",
    "display": "shown-on-the-screen-only",
    "summary": "asked-about-the-merger",
    "key": "AIzaSyD-9tSecretKeyOfAna0123456789abcde",
    "mail": "ana.secret@example.org",
    "status": "a-status-nobody-knows",
    "time": "once-upon-a-time",
    "tokens": "as-many-as-stars",
    "long name": "name-that-goes-on",
    "field": "field-of-a-later-release",
    "malformed": "half-of-a-line",
    "deep": "at-the-bottom-of-the-list",
    "over-long": "in-the-longest-line",
    "log": "typed-into-the-prompt",
    "credentials": "refresh-token-1-abcdef",
    "variable": "key-from-the-environment",
    "address": "asked-of-the-server",
}
"""What is planted, by where; every text is in the outputs as it is, or not at all."""

ENVIRONMENT = {name: text for name, text in os.environ.items() if not name.startswith("GEMINI_")}
ENVIRONMENT["GEMINI_API_KEY"] = SECRETS["variable"]

TURNS = 11
"""Replies with usage that are planted, the live one and those with something wrong included."""

REASONS = {"bad_json", "bad_shape", "bad_tokens", "line_too_long", "time_missing", "too_deep"}
"""What is wrong with some."""


def reply(id: str, **more: Any) -> dict[str, Any]:
    """Return a reply that holds a secret in every place where there may be text."""
    call = {
        "id": f"call-{SECRETS['argument']}",
        "name": "run_shell_command",
        "args": {"command": SECRETS["argument"], "file_path": f"/home/ana/{SECRETS['file']}"},
        "result": [{"functionResponse": {"response": {"output": SECRETS["result"]}}}],
        "resultDisplay": SECRETS["display"],
        "description": f"{SECRETS['argument']} for {SECRETS['mail']}",
        "status": "success",
        "timestamp": "2026-11-30T20:00:00.000Z",
    }
    return gemini(id, input=sum(map(ord, id))) | {
        "content": f"{SECRETS['reply']} {SECRETS['key']}",
        "thoughts": [{"subject": SECRETS["thought"], "description": SECRETS["thought"]}],
        "toolCalls": [call],
        "laterField": {SECRETS["field"]: SECRETS["field"]},
        **more,
    }


def prompt(id: str) -> dict[str, Any]:
    text = f"{SECRETS['prompt']} {SECRETS['key']} {SECRETS['mail']} {SECRETS['file']}"
    return user(id) | {"content": [{"text": text}]}


def good() -> Iterator[bytes]:
    """Yield the lines of a session without any fault."""
    yield dumps(header(SESSION) | {"summary": SECRETS["summary"]})
    yield dumps(prompt("u-1"))
    yield dumps(reply("one"))
    yield dumps({"$set": {"summary": SECRETS["summary"], "messages": [prompt("u-1")]}})
    yield dumps({"$rewindTo": SECRETS["prompt"]})


def bad() -> Iterator[bytes]:
    """Yield lines that have something wrong, each with secrets in it."""
    yield dumps(header(SESSION))
    yield f'{{"id":"x","type":"gemini","content":"{SECRETS["malformed"]}'.encode()
    yield SECRETS["malformed"].encode() + b"\xff\x00\xfe"
    yield dumps(reply("half"))[:-60] + dumps(reply("glued"))
    yield dumps([SECRETS["malformed"]])
    yield dumps(reply("times", timestamp=SECRETS["time"]))
    yield dumps(reply("model", model=[SECRETS["reply"]]))
    yield dumps(reply("long", model=SECRETS["long name"] + "x" * 2000))
    yield dumps(reply("tokens") | {"tokens": {"input": SECRETS["tokens"], "output": 1}})
    yield dumps(reply("text") | {"tokens": SECRETS["tokens"]})
    yield dumps(reply("calls", toolCalls=SECRETS["argument"]))
    call = {"id": SECRETS["argument"], "status": SECRETS["status"], "args": SECRETS["argument"]}
    names: list[Any] = ["edit", {SECRETS["long name"]: 1}, SECRETS["long name"] + "x" * 2000]
    yield dumps(reply("statuses", toolCalls=[call | {"name": name} for name in names]))
    yield dumps(reply("list") | {"id": [SECRETS["reply"]]})
    deep = b"[" * 5_000 + dumps(SECRETS["deep"]) + b"]" * 5_000
    yield dumps(reply("deep"))[:-1] + b',"more":' + deep + b"}"
    long = (SECRETS["over-long"] + " ") * (MAX_LINE // len(SECRETS["over-long"]))
    yield dumps(reply("over-long", content=long))
    yield dumps(prompt("u-2") | {"content": long})
    yield dumps(reply("last"))


def plant(root: Path) -> Path:
    """Write a home full of secrets; return a transcript that may go on."""
    project = root / "tmp" / "shop"
    chats = project / "chats"
    (chats / SESSION).mkdir(parents=True)
    live = chats / f"session-2026-11-30T20-00-{SESSION[:8]}.jsonl"
    live.write_bytes(b"\n".join([*good(), b""]))
    (chats / "session-bad.jsonl").write_bytes(b"\n".join([*bad(), b""]))
    agent = [header(AGENT, "subagent"), prompt("u-3"), reply("agent")]
    (chats / SESSION / "agent.jsonl").write_bytes(b"".join(dumps(line) + b"\n" for line in agent))
    document = {**header(SESSION), "messages": [prompt("u-4"), reply("document")]}
    (chats / "session-document.json").write_bytes(dumps(document))
    (chats / "session-cut.json").write_bytes(dumps(document)[:-9])
    (project / "logs.json").write_bytes(dumps([{"type": "user", "message": SECRETS["log"]}]))
    (project / "shell_history").write_text(SECRETS["log"])
    (root / "oauth_creds.json").write_bytes(dumps({"refresh_token": SECRETS["credentials"]}))
    (root / "google_accounts.json").write_bytes(dumps({"active": SECRETS["mail"]}))
    return live


class Talkative(Program):
    """The program at level debug, with all that it says in its log."""

    def __init__(self, folder: Path, root: Path, style: str) -> None:
        super().__init__(folder, [root])
        self._command += ["--log.level", "debug", "--log.format", style]

    def start(self) -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, env=ENVIRONMENT, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def url(self) -> str:
        found = self._wait(lambda: re.search(r"http://[0-9.]+:\d+", self.log))
        return found[0]


def ask(url: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    """Return status and all that a page answers, its head included."""
    request = Request(url, headers=headers, method=method)
    try:
        response: HTTPResponse | HTTPError = OPENER.open(request, timeout=PATIENCE)
    except HTTPError as error:
        response = error
    with response:
        return response.status or 0, bytes(response.headers) + response.read()


def leaked(output: bytes, secrets: dict[str, str]) -> dict[str, str]:
    """Return the secrets that are in an output, with what stands around them."""
    found = {}
    output = output.lower()
    for name, secret in secrets.items():
        at = output.find(secret.lower().encode())
        if at >= 0:
            found[name] = output[max(0, at - 80) : at + 80].decode(errors="replace")
    return found


def on_disk(folder: Path) -> bytes:
    """Return the bytes of the ledger and of everything beside it but the log."""
    files = sorted(folder.glob("ledger.db*"))
    assert files
    return b"".join(path.read_bytes() for path in files)


def counted(metrics: Metrics) -> float:
    return metrics.value("gemini_cli_turns_total")


@pytest.mark.parametrize("style", ["logfmt", "json"])
def test_once_and_history_print_no_secret(tmp_path: Path, style: str) -> None:
    plant(tmp_path / "gemini")
    done = run("once", tmp_path, style)
    metrics = Metrics(done.stdout.decode())
    assert counted(metrics) == TURNS - 1
    reasons = metrics.by_label("gemini_cli_exporter_records_skipped_total", "reason")
    assert reasons.keys() >= REASONS
    past = run("history", tmp_path, style)
    assert past.stdout.count(b"\ngemini_cli_turns_total{") >= TURNS - 1
    for output in (done.stdout, done.stderr, past.stdout, past.stderr):
        assert leaked(output, SECRETS | SESSIONS) == {}
    assert leaked(on_disk(tmp_path), SECRETS) == {}


def run(command: str, folder: Path, style: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command at level debug, with the ledger in a folder and the home below that."""
    options = ["--log.level", "debug", "--log.format", style]
    options += ["--ledger.path", str(folder / "ledger.db")]
    options += ["--transcripts.root", str(folder / "gemini")]
    done = subprocess.run(
        [sys.executable, "-m", "exporter", command, *options],
        env=ENVIRONMENT,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert b"debug" in done.stderr
    return done


@pytest.mark.parametrize("style", ["logfmt", "json"])
def test_serve_shows_no_secret_on_any_page_nor_in_its_log(tmp_path: Path, style: str) -> None:
    live = plant(tmp_path / "gemini")
    pages: list[bytes] = []
    with Talkative(tmp_path, tmp_path / "gemini", style) as program:
        program.start()
        url = program.url
        until(lambda: ask(f"{url}/-/ready")[0] == 200)
        with live.open("ab") as file:
            file.write(dumps(reply("live")) + b"\n" + SECRETS["malformed"].encode() + b"\n")
        until(lambda: turns(url) == TURNS)
        for accept in (TEXT, OPENMETRICS):
            pages.append(ask(f"{url}/metrics", Accept=accept)[1])
        for path in ("/", "/-/ready", "/-/healthy"):
            pages.append(ask(url + path)[1])
        secret = SECRETS["address"]
        refused = {
            404: ask(f"{url}/{secret}?{secret}"),
            405: ask(f"{url}/metrics?{secret}", "POST", Authorization=f"Bearer {secret}"),
            421: ask(f"{url}/", Host=f"{secret}.example.org"),
        }
        for status, (found, page) in refused.items():
            assert found == status
            pages.append(page)
        while_running = on_disk(tmp_path)
        assert program.stop() == 0
    assert all(pages)
    for page in pages:
        assert leaked(page, SECRETS | SESSIONS) == {}
    assert leaked(program.log.encode(), SECRETS | SESSIONS) == {}
    assert leaked(while_running + on_disk(tmp_path), SECRETS) == {}


def turns(url: str) -> float:
    return counted(Metrics(ask_text(f"{url}/metrics")))


def ask_text(url: str) -> str:
    with OPENER.open(url, timeout=PATIENCE) as response:
        text: str = response.read().decode()
        return text


def until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_search_finds_what_was_planted(tmp_path: Path) -> None:
    """The control: each secret is in the home, unless it comes from elsewhere."""
    plant(tmp_path)
    home = b"".join(path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file())
    found = leaked(home, SECRETS | SESSIONS)
    assert (SECRETS | SESSIONS).keys() - found.keys() == {"variable", "address"}
