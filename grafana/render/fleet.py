"""Invented laptops of some teams, and what the rules of `deploy/fleet` record of them."""

from __future__ import annotations

import re
import subprocess
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from exporter.demo import Plan
from exporter.ledger.budgets import Budgets, Calendar
from tests.prometheus import Prometheus

from .history import Machine

_RULES: Final = Path(__file__).parents[2] / "deploy" / "fleet" / "rules.yaml"
_EXAMPLE: Final = re.compile(r" *- record: \w+:gemini_cli_budget_usd:constant\n(?: {8}.*\n)+")
_LEVELS: Final = 5
"""How many rules build upon each other at most: each round of promtool adds one."""

_TEAMS: Final = {
    "ana": "platform",
    "ben": "platform",
    "cleo": "platform",
    "dan": "design",
    "eve": "design",
    "finn": "data",
}
"""The team of each owner."""
_BUDGETS: Final = {"platform": 385, "design": 250}
_ASLEEP: Final = {"eve": 9 * 3600}
"""Seconds by owner."""


def laptops(folder: Path, end: datetime) -> list[Machine]:
    """Return the laptops of three teams; one of them sleeps before `end`."""
    late = end + timedelta(hours=2)
    found = []
    for number, (owner, team) in enumerate(_TEAMS.items()):
        turns = 6_000 - 900 * number
        plan = Plan(late, projects=2, sessions=turns // 35, turns=turns, days=20, seed=number)
        labels = {"job": "gemini-cli-exporter", "instance": f"{owner}-ledger"}
        labels |= {"team": team, "owner": owner, "host": f"laptop{number + 3}"}
        asleep = _ASLEEP.get(owner, 0)
        found.append(Machine(folder / owner, labels, plan, Budgets(Calendar(), {}, {}), asleep))
    return found


def record(prometheus: Path, end: datetime, hours: int) -> None:
    """Add to the data of a Prometheus what the rules would have recorded in these hours.

    Raises CalledProcessError if promtool fails.
    """
    rules = prometheus / "rules.yaml"
    rules.write_text(_with_budgets(_RULES.read_text()))
    start = int((end - timedelta(hours=hours)).timestamp())
    for _ in range(_LEVELS):
        with Prometheus(prometheus, {}) as running:
            command = ["promtool", "tsdb", "create-blocks-from", "rules", "-q"]
            command += [f"--url=http://{running.address}", f"--start={start}"]
            command += [f"--end={int(end.timestamp())}", f"--output-dir={prometheus / 'data'}"]
            subprocess.run([*command, rules], check=True, capture_output=True)


def _with_budgets(rules: str) -> str:
    """Return the rules with the budgets of these teams in the place of the example."""
    example = _EXAMPLE.findall(rules)
    assert len(example) == 1
    budgets = (
        example[0].replace("2000", str(usd)).replace("platform", team)
        for team, usd in _BUDGETS.items()
    )
    return rules.replace(example[0], "".join(budgets))
