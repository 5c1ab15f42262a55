"""Prints the PodMonitor, the rules and the dashboards as Kubernetes objects.

    python deploy/kubernetes/monitoring.py [LABEL=VALUE ...] | kubectl apply --server-side -f -

Each object gets the labels that are given, for instance the one by which a Prometheus chooses its
rules. Rules and dashboards are those of this repository, so there is no copy of them to keep.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

_DEPLOY: Final = Path(__file__).resolve().parents[1]
_DASHBOARDS: Final = _DEPLOY.parent / "grafana" / "dashboards"
_RULES: Final = ("gemini-cli-rules", "gemini-cli-alerts")


def objects(labels: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield every object with these labels; raises OSError and yaml.YAMLError."""
    monitor = yaml.safe_load((_DEPLOY / "kubernetes" / "podmonitor.yaml").read_text("utf-8"))
    monitor["metadata"]["labels"] = dict(labels)
    yield monitor
    for name in _RULES:
        yield {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": name, "labels": dict(labels)},
            "spec": yaml.safe_load((_DEPLOY / "prometheus" / f"{name}.yaml").read_text("utf-8")),
        }
    for path in sorted(_DASHBOARDS.glob("*.json")):
        page = json.dumps(json.loads(path.read_bytes()), separators=(",", ":"))
        # Grafana's sidecar takes every ConfigMap with this label.
        labelled = {"grafana_dashboard": "1", **labels}
        yield {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"gemini-cli-dashboard-{path.stem}", "labels": labelled},
            "data": {f"gemini-cli-{path.name}": page},
        }


def main(argv: Sequence[str]) -> int:
    """Print all objects; return 2 when an argument is no label."""
    if wrong := [argument for argument in argv if "=" not in argument]:
        print(f"monitoring.py: {wrong[0]!r}: give labels as NAME=VALUE", file=sys.stderr)
        return 2
    labels = dict(argument.split("=", 1) for argument in argv)
    # JSON, because YAML's readers do not agree on which words are no text.
    print(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*objects(labels)]}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
