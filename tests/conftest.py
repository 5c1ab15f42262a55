"""Fixtures for all tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.real import RealSet


@pytest.fixture(scope="session")
def real_sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RealSet]:
    """All real sets by name, unpacked once; a test that changes files takes a copy of the set."""
    from tests.real import sets

    return {real.name: real for real in sets(tmp_path_factory.mktemp("real"))}
