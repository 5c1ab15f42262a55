"""From a transcript to a message: exporter, Prometheus and Alertmanager with the shipped files."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.alertmanager import Alertmanager, Webhook, needs_alertmanager
from tests.deploy.tools import DEPLOY
from tests.program import Program
from tests.prometheus import Prometheus, needs_prometheus
from tests.support import dumps, gemini, header

pytestmark = [needs_prometheus, needs_alertmanager, pytest.mark.timeout(180)]

FLASH_OUTPUT_USD = 2.5e-6
"""What a token of gemini-2.5-flash costs that was an answer."""

_TIMES = ("interval", "for", "group_wait", "group_interval")


def hurried(text: str) -> str:
    """Return a shipped file in which everything happens within a second."""
    return re.sub(rf"(?m)^(\s*(?:{'|'.join(_TIMES)}): ).*$", r"\g<1>1s", text)


class Watched(Program):
    """An exporter with budgets, at the same address in all its lives."""

    def __init__(self, folder: Path, root: Path) -> None:
        folder.mkdir()
        super().__init__(folder, [root])
        self._settings = folder / "exporter.yml"
        self._command += ["--config.file", str(self._settings)]
        self.address = ""

    def live(self, **budget: Any) -> None:
        """Begin a life with these budgets; returns when it is ready."""
        self.stop()
        self._settings.write_text(json.dumps({"budget": {"timezone": "UTC", **budget}}))
        self.start()
        self.metrics()
        if not self.address:
            self.address = self.wait_for_address().removeprefix("http://")
            place = self._command.index("--web.listen-address") + 1
            self._command[place] = self.address


class Stack:
    """All four of them, from the transcripts' root to the webhook."""

    def __init__(self, folder: Path, running: ExitStack) -> None:
        self._root = folder / "gemini"
        self._written = 0
        self.exporter = running.enter_context(Watched(folder / "exporter", self._root))
        self.write("shop", usd=0.25)
        self.exporter.live(month=5, projects={"docs": {"month": 3}})
        self.webhook = running.enter_context(Webhook())
        shipped = (DEPLOY / "alertmanager" / "alertmanager.yaml").read_text("utf-8")
        routing = hurried(shipped.replace("http://127.0.0.1:5001", self.webhook.url))
        self.alertmanager = running.enter_context(
            Alertmanager(folder / "alertmanager", yaml.safe_load(routing))
        )
        rules = []
        for path in sorted((DEPLOY / "prometheus").glob("*.yaml")):
            rules.append(folder / path.name)
            rules[-1].write_text(hurried(path.read_text("utf-8")), "utf-8")
        self.prometheus = running.enter_context(
            Prometheus(
                folder / "prometheus",
                {"gemini-cli": [self.exporter.address]},
                rules=rules,
                alertmanager=self.alertmanager.address,
            )
        )

    def write(self, project: str, usd: float) -> None:
        """Write a turn that costs so much and happens now."""
        chats = self._root / "tmp" / project / "chats"
        chats.mkdir(parents=True, exist_ok=True)
        self._written += 1
        reply = gemini(
            f"g-{self._written}",
            0,
            round(usd / FLASH_OUTPUT_USD),
            time=datetime.now(UTC).isoformat(),
        )
        with (chats / "session-a.jsonl").open("ab") as file:
            file.write(dumps(header(f"{project}-session")) + b"\n" + dumps(reply) + b"\n")

    def told(self, name: str, status: str, **labels: str) -> dict[str, Any]:
        """Wait until the receiver of money was told of an alert, and return what it was told."""
        labels |= {"alertname": name, "job": "gemini-cli", "instance": self.exporter.address}

        def wanted(path: str, alert: dict[str, Any]) -> bool:
            own = {key: text for key, text in alert["labels"].items() if key != "severity"}
            return (path, alert["status"], own) == ("/money", status, labels)

        return self.webhook.wait_for(wanted)

    def inhibited(self) -> set[str]:
        """Return the names of the alerts that Alertmanager keeps to itself because of others."""
        return {
            alert["labels"]["alertname"]
            for alert in self.alertmanager.alerts()
            if alert["status"]["inhibitedBy"]
        }


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with ExitStack() as running:
        yield Stack(tmp_path, running)


def test_who_exceeds_a_budget_is_told_and_told_when_there_is_a_higher_one(stack: Stack) -> None:
    stack.prometheus.wait_for("job_instance_period:gemini_cli_budget_used:ratio")
    assert stack.webhook.received == []

    stack.write("shop", usd=6)
    alert = stack.told("GeminiCliBudgetExceeded", "firing", period="month")
    place = f"{stack.exporter.address} (gemini-cli)"
    assert alert["annotations"] == {
        "summary": "A Gemini CLI budget is exceeded.",
        "description": f"{place} has used an estimated 125% of the budget for this month.",
        "runbook_url": "docs/runbooks.md#geminiclibudgetexceeded",
    }
    stack.write("docs", usd=3.3)
    alert = stack.told("GeminiCliBudgetExceeded", "firing", period="month", project="docs")
    assert "110% of the budget of project docs for this" in alert["annotations"]["description"]
    assert "GeminiCliBudgetNearlyUsed" in stack.inhibited()

    stack.exporter.stop()
    stack.prometheus.wait_for("up == 0")
    held = 'timestamp(ALERTS{alertname="GeminiCliBudgetExceeded",alertstate="firing"})'
    # Some evaluations later what was spent is still spent, though nobody answers.
    assert len(stack.prometheus.wait_for(f"{held} > {time.time() + 2:.3f}")) == 2

    stack.exporter.live(month=50, projects={"docs": {"month": 30}})
    stack.told("GeminiCliBudgetExceeded", "resolved", period="month")
    stack.told("GeminiCliBudgetExceeded", "resolved", period="month", project="docs")
    told = [alert for _, body in stack.webhook.received for alert in body["alerts"]]
    assert {alert["labels"]["alertname"] for alert in told} == {"GeminiCliBudgetExceeded"}
