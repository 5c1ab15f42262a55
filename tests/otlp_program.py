"""The real program as one that pushes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.program import PATIENCE, Program

INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
PROTOCOL: Final = "OTEL_EXPORTER_OTLP_PROTOCOL"
TIMEOUT: Final = "OTEL_EXPORTER_OTLP_TIMEOUT"
TEMPORALITY: Final = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"

DAY: Final = 86_400_000
MODELS: Final = ("gemini-2.5-flash", "gemini-2.5-flash-lite", "nobody-prices-this")
"""Of one price each, however long the prompt."""


class Pushing(Program):
    """The program with an environment and options of its own."""

    def __init__(
        self, folder: Path, root: Path, *options: str, environ: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(folder, [root])
        given = {"NO_PROXY": "127.0.0.1", INTERVAL: "100", **(environ or {})}
        set_by_env = [f"{name}={text}" for name, text in given.items()]
        self._command = ["env", *set_by_env, *self._command, *options]

    @property
    def pid(self) -> int:
        """The process of the present life."""
        assert self._process is not None
        return self._process.pid

    def logged(self, text: str) -> None:
        """Return as soon as the present life has said this."""
        self._wait(lambda: text in self.log or None)


def until(wanted: Callable[[], object], what: str) -> None:
    """Look again and again until there is something; fail when patience has run out."""
    end = time.monotonic() + PATIENCE
    while not wanted():
        assert time.monotonic() < end, what
        time.sleep(0.05)
