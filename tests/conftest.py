"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from tests.real import RealSet

# How long an example takes says more about the machine's other work than about the code.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `pytest --update-golden` write the committed files anew, to be read and committed."""
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, bytes], None]:
    """Compare bytes with a file of the folder `golden` beside the test; see --update-golden."""

    def compare(name: str, found: bytes) -> None:
        path = request.path.parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.write_bytes(found)
        expected = path.read_bytes()
        assert found.decode().splitlines() == expected.decode().splitlines()
        assert found == expected

    return compare


@pytest.fixture(scope="session")
def real_sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RealSet]:
    """All real sets by name, unpacked once; a test that changes files takes a copy of the set."""
    from tests.real import sets

    return {real.name: real for real in sets(tmp_path_factory.mktemp("real"))}


@pytest.fixture
def user_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that `~` stands for, empty at first."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def write_config(tmp_path: Path) -> Callable[[str | bytes], Path]:
    """Write the configuration file and return its path."""

    def write(text: str | bytes) -> Path:
        path = tmp_path / "exporter.yml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write
