"""The dashboards as they are committed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from grafana.build import FOLDER

NAMES = ["overview", "project", "health"]


def load(name: str) -> dict[str, Any]:
    """Return the model of a committed dashboard."""
    model: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return model


@pytest.fixture(params=NAMES)
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Each dashboard in turn."""
    return load(request.param)
