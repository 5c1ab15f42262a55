"""The rules for VictoriaMetrics: those for Prometheus, translated, and at work in its vmalert."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from tests.daemon import Daemon
from tests.deploy.test_alert_end_to_end import Watched, hurried
from tests.support import dumps, gemini, header
from tests.victoriametrics import RULES, VictoriaMetrics, needs_victoriametrics, translated

from .tools import need, printed

FOLDER: Final = RULES.parent / "victoriametrics"
NAMES: Final = [path.name for path in sorted(RULES.glob("*.yaml"))]
HEAD: Final = """\
# For VictoriaMetrics; made from prometheus/{name}, so change that one.
# docs/victoriametrics.md says what differs.
#
"""


@pytest.mark.parametrize("name", NAMES)
def test_they_are_those_for_prometheus_translated(
    request: pytest.FixtureRequest, name: str
) -> None:
    """They are written anew by --update-golden."""
    expected = HEAD.format(name=name) + translated((RULES / name).read_text("utf-8"))
    path = FOLDER / name
    if request.config.getoption("--update-golden"):
        path.write_text(expected, "utf-8")
    assert path.read_text("utf-8") == expected


def test_there_are_no_others() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == NAMES


def test_vmalert_accepts_them() -> None:
    printed(need("vmalert"), "-dryRun", f"-rule={FOLDER}/*.yaml")


class Vmalert(Daemon):
    """One process of it that evaluates rules every second; what it notifies goes nowhere."""

    def __init__(self, folder: Path, server: VictoriaMetrics) -> None:
        super().__init__(folder, {})
        self._server = server
        for name in NAMES:
            text = (FOLDER / name).read_text("utf-8")
            (folder / name).write_text(hurried(text), "utf-8")

    def _command(self, config: Path) -> Sequence[str | Path]:
        return [
            "vmalert",
            f"-rule={config.parent / 'gemini-cli-*.yaml'}",
            f"-httpListenAddr={self.address}",
            f"-datasource.url={self._server.url}",
            f"-remoteWrite.url={self._server.url}",
            "-remoteWrite.flushInterval=200ms",
            "-notifier.url=http://127.0.0.1:9",
            "-loggerLevel=ERROR",
        ]


@needs_victoriametrics
@pytest.mark.timeout(120)
def test_vmalert_fires_when_a_budget_is_exceeded_and_marks_it_when_removed(tmp_path: Path) -> None:
    need("vmalert")
    root = tmp_path / "gemini"
    chats = root / "tmp" / "shop" / "chats"
    chats.mkdir(parents=True)
    reply = gemini("g-1", 0, 1_000_000, time=datetime.now(UTC).isoformat())  # 2.50 USD
    (chats / "session-a.jsonl").write_bytes(dumps(header()) + b"\n" + dumps(reply) + b"\n")
    used = "job_instance_period:gemini_cli_budget_used"
    with Watched(tmp_path / "exporter", root) as exporter:
        exporter.live(month=2)
        targets = {"gemini-cli": [exporter.address]}
        with (
            VictoriaMetrics(tmp_path / "victoria", targets) as server,
            Vmalert(tmp_path / "vmalert", server),
        ):
            firing = 'ALERTS{alertname="GeminiCliBudgetExceeded",alertstate="firing"}'
            (fired,) = server.wait_for(firing)
            assert fired["metric"]["period"] == "month"
            assert server.value(f"{used}:last2d") == pytest.approx(1.25)
            exporter.live()
            server.wait_for(f"{used}:ratio == -1")
            server.wait_for(f"absent({firing})")
