"""A real VictoriaMetrics on a free port of loopback, and how to put to it what Prometheus asks."""

from __future__ import annotations

import json
import re
import shutil
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.daemon import PATIENCE
from tests.prometheus import Prometheus

needs_victoriametrics = pytest.mark.skipif(
    shutil.which("victoria-metrics") is None, reason="victoria-metrics is not on the PATH"
)
"""Marks a test that starts a VictoriaMetrics."""

RULES: Final = Path(__file__).parent.parent / "deploy" / "prometheus"
"""The folder of the rules for Prometheus."""

_TRANSLATION: Final = (
    # Without these, a small first value counts as an increase from 0, and a first one as a change.
    (r"\b(increase|changes)\(", r"\1_prometheus("),
    # An answer that is not a number is dropped, so it can mark nothing.
    (r"\bNaN \* \(", "-1 + 0 * ("),
    (r"\bNaN marks", "-1 marks"),
    # The end of a subquery is up to two of its steps ahead, where a plain selector finds nothing.
    (r'(\S+\{period="day"\}) @ end\(\)', r"last_over_time(\1[2h] @ end())"),
)


def translated(text: str) -> str:
    """Return queries or rules for Prometheus as they mean the same to VictoriaMetrics."""
    for pattern, replacement in _TRANSLATION:
        text = re.sub(pattern, replacement, text)
    return text


class VictoriaMetrics(Prometheus):
    """One process of it. It has the HTTP API of Prometheus, so it is told and asked the same way.

    Rules and an Alertmanager are not its business. Whatever it has taken in is found by the next
    query, up to this moment.
    """

    def _command(self, config: Path) -> Sequence[str | Path]:
        return [
            "victoria-metrics",
            f"-promscrape.config={config}",
            "-promscrape.config.strictParse=false",  # it does not know what is said of rules
            f"-httpListenAddr={self.address}",
            f"-storageDataPath={self._folder / 'data'}",
            "-retentionPeriod=100y",
            "-search.latencyOffset=0s",
            "-search.disableCache",  # with it, times are moved to multiples of the step
            "-memory.allowedBytes=256MB",
            "-loggerLevel=WARN",
            *self._flags,
        ]

    def api(self, path: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """Return the data of an answer of the HTTP API; raises QueryError if it is an error."""
        self._flush()
        return super().api(path, parameters)

    def take_in(
        self, text: bytes, labels: Mapping[str, str] | None = None, at: int | None = None
    ) -> None:
        """Store an exposition with more labels; samples without a time get one (milliseconds)."""
        added = [f"{name}={value}" for name, value in (labels or {}).items()]
        given = {"extra_label": added} | ({} if at is None else {"timestamp": at})
        self._post("api/v1/import/prometheus", given, text)

    def samples(self, selector: str) -> Iterator[tuple[dict[str, str], list[tuple[int, float]]]]:
        """Yield the labels and all samples (milliseconds, value) of each series that matches."""
        self._flush()
        for line in self._post("api/v1/export", {"match[]": selector}).splitlines():
            series = json.loads(line)
            yield series["metric"], list(zip(series["timestamps"], series["values"], strict=True))

    def _flush(self) -> None:
        self._post("internal/force_flush", {})

    def _post(self, path: str, parameters: Mapping[str, Any], data: bytes = b"") -> bytes:
        query = urllib.parse.urlencode(parameters, doseq=True)
        with urllib.request.urlopen(f"{self.url}/{path}?{query}", data, PATIENCE) as answer:
            found: bytes = answer.read()
            return found
