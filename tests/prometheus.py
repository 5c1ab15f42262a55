"""A real Prometheus on a free port of loopback, with a folder of its own."""

from __future__ import annotations

import json
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import PATIENCE, Daemon

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not on the PATH"
)
"""Marks a test that starts a Prometheus."""


class QueryError(Exception):
    """Prometheus refused a query; the message is its own."""


class Prometheus(Daemon):
    """One process of it, as a context manager: ready once entered, gone after.

    `targets` maps a job's name to the addresses (host:port) that are scraped under it; more can be
    said by `scrape`, whole scrape configurations. `rules` are rule files. All scrapes and rule
    evaluations happen every `interval` (a Prometheus duration); `alertmanager` is the address that
    alerts go to. The data is kept in `folder`, and is taken up again if it is there already.
    """

    def __init__(
        self,
        folder: Path,
        targets: Mapping[str, Sequence[str]],
        *,
        rules: Sequence[Path] = (),
        interval: str = "1s",
        scrape: Sequence[Mapping[str, Any]] = (),
        alertmanager: str | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        static = [
            {"job_name": job, "static_configs": [{"targets": list(addresses)}]}
            for job, addresses in targets.items()
        ]
        alerting = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}
        config = {
            "global": {"scrape_interval": interval, "evaluation_interval": interval},
            "rule_files": [str(path.resolve()) for path in rules],
            "alerting": alerting if alertmanager else {},
            "scrape_configs": [*static, *scrape],
        }
        super().__init__(folder, config)
        self._flags = flags

    def _command(self, config: Path) -> Sequence[str | Path]:
        return [
            "prometheus",
            f"--config.file={config}",
            f"--web.listen-address={self.address}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            "--storage.tsdb.retention.time=10y",
            "--web.enable-lifecycle",
            "--log.level=warn",
            *self._flags,
        ]

    def query(self, expr: str, at: float | None = None) -> list[dict[str, Any]]:
        """Return the series that an instant query finds, each {"metric": {}, "value": [at, text]}.

        Raises QueryError if it is refused.
        """
        return self._results("query", {"query": expr} | ({} if at is None else {"time": at}))

    def value(self, expr: str, at: float | None = None) -> float | None:
        """Return the value of the only series that a query finds, or None if it finds none."""
        found = self.query(expr, at)
        assert len(found) <= 1, f"{expr} finds {len(found)} series"
        return float(found[0]["value"][1]) if found else None

    def query_range(self, expr: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """Return the series that a query finds between two times (seconds since the epoch).

        Each is {"metric": {}, "values": [[at, text], ...]}. Raises QueryError if it is refused.
        """
        asked = {"query": expr, "start": start, "end": end, "step": step}
        return self._results("query_range", asked)

    def series(self, selector: str) -> list[dict[str, str]]:
        """Return the label sets of all series that a selector ever matched."""
        found: list[dict[str, str]] = self.api("series", {"match[]": selector})
        return found

    def scraped(self) -> None:
        """Return once every target has answered a scrape that began after this call.

        Raises AssertionError if one does not in time, or if there is no target.
        """
        fresh = f"count((timestamp(up) > {time.time():.3f}) and up == 1)"

        def all_scraped() -> bool:
            count = self.value(fresh)
            return count is not None and count >= len(self.api("targets")["activeTargets"])

        self._wait("a scrape of each target", all_scraped)

    def wait_for(self, expr: str) -> list[dict[str, Any]]:
        """Return what an instant query finds as soon as it finds anything.

        Raises AssertionError if it finds nothing for too long.
        """
        found: list[dict[str, Any]] = []

        def any_found() -> bool:
            found[:] = self.query(expr)
            return bool(found)

        self._wait(f"data for {expr}", any_found)
        return found

    def api(self, path: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """Return the data of an answer of the HTTP API; raises QueryError if it is an error."""
        data = urllib.parse.urlencode(parameters or {}, doseq=True)
        try:
            with urllib.request.urlopen(
                f"{self.url}/api/v1/{path}?{data}", timeout=PATIENCE
            ) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise QueryError(json.load(error)["error"]) from None

    def _results(self, path: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        data = self.api(path, parameters)
        if data["resultType"] == "scalar":
            return [{"metric": {}, "value": data["result"]}]
        results: list[dict[str, Any]] = data["result"]
        return results
