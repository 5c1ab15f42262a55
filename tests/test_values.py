"""Single values: what is written is read, written back alike, and refused with the remedy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.settings import describe
from exporter.values import Duration, ListenAddress
from tests.support import refusal, settings

pytestmark = pytest.mark.usefixtures("user_home")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), ("1h30m", 5400), ("250ms", 0.25), ("1h1m1s1ms", 3661.001)],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert Duration.parse(text) == pytest.approx(seconds, abs=1e-9)


@given(st.integers(1, 366 * 86_400_000))
def test_a_duration_is_written_as_it_is_read(milliseconds: int) -> None:
    duration = Duration(milliseconds / 1000)
    assert round(Duration.parse(str(duration)) * 1000) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "s", "m5", "5", "1.5h", "1m1h", "-1s", "0s", "0ms", "8785h", "1h 30m", "5d", "٣"]
)
def test_a_duration_that_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write for example 90s|at most 8784h"):
        Duration.parse(text)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9742", "127.0.0.1", 9742),
        ("localhost:0", "localhost", 0),
        ("my-host_1.example:65535", "my-host_1.example", 65535),
        (":9742", "", 9742),
        ("[::1]:9742", "::1", 9742),
        ("[fe80::1%eth0]:9742", "fe80::1%eth0", 9742),
    ],
)
def test_an_address_is_read_and_written_alike(text: str, host: str, port: int) -> None:
    address = ListenAddress.parse(text)
    assert address == (host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "9742",
        "localhost",
        "localhost:",
        "localhost:http",
        "localhost:65536",
        "::1:9742",
        "[::1]",
        "[]:9742",
        "[127.0.0.1]:9742",
        "http://localhost:9742",
        "a b:9742",
        "127.0.0.1:9742,127.0.0.1:9743",
    ],
)
def test_an_address_that_cannot_be_used_is_refused(text: str) -> None:
    assert refusal("--web.listen-address", text) == (
        f"--web.listen-address: {text!r} is not HOST:PORT, as in 127.0.0.1:9742 or [::1]:9742"
    )


def test_host_names_are_kept_without_repetitions() -> None:
    names = ("exporter", "metrics.example.org", " exporter ", "a_b-1.", "192.0.2.1")
    found = settings(*(f"--web.allowed-host={name}" for name in names))
    assert found.web.allowed_host == ("exporter", "metrics.example.org", "a_b-1.", "192.0.2.1")


@pytest.mark.parametrize(
    "text", ["", "exporter:9742", "http://exporter", "[::1]", "*", "*.example.org", "a b", "käse"]
)
def test_a_host_name_that_cannot_be_used_is_refused(text: str) -> None:
    assert refusal("--web.allowed-host", text) == (
        f"--web.allowed-host: {text!r} is not a host name: write it without scheme and port;"
        " addresses are always allowed"
    )


def test_paths_are_absolute_with_the_home_folder_filled_in(
    user_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(user_home)
    roots = ("~/a", "b/../c", "/d, with a comma", "/d, with a comma/", "[e]")
    found = settings(*(f"--transcripts.root={root}" for root in roots), "--ledger.path=~/l.db")
    expected = (user_home / "a", user_home / "c", Path("/d, with a comma"), user_home / "[e]")
    assert found.transcripts.root == expected
    assert found.ledger.path == user_home / "l.db"


def test_a_path_need_not_be_text() -> None:
    name = os.fsdecode(b"/caf\xe9")
    found = settings("--transcripts.root", name)
    assert os.fsencode(found.transcripts.root[0]) == b"/caf\xe9"
    assert describe(found)["transcripts.root"] == [name]
