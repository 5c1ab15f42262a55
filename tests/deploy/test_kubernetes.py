"""The sidecar fits into a workspace, and what watches it finds it, its rules and its dashboards."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.tools import DEPLOY, PROJECT, need, printed

KUBERNETES = DEPLOY / "kubernetes"
RULES = ("gemini-cli-rules", "gemini-cli-alerts")
WORKSPACE = """\
apiVersion: apps/v1
kind: {kind}
metadata:
  name: workspace
  labels: {{gemini-cli-exporter: sidecar}}
spec:
  selector:
    matchLabels: {{app: workspace}}
  template:
    metadata:
      labels: {{app: workspace}}
    spec:
      containers:
        - name: workspace
          image: workspace
          volumeMounts: [{{name: home, mountPath: /home/ana}}]
      volumes:
        - name: home
          persistentVolumeClaim: {{claimName: home}}
"""


def load(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


@pytest.fixture(params=["StatefulSet", "Deployment"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """A workspace with the component, as kustomize makes it."""
    (tmp_path / "workspace.yaml").write_text(WORKSPACE.format(kind=request.param))
    shutil.copytree(KUBERNETES, tmp_path / "exporter")
    (tmp_path / "kustomization.yaml").write_text(
        "resources: [workspace.yaml]\n"
        "components: [exporter]\n"
        "images: [{name: gemini-cli-exporter, newName: registry.example/exporter, newTag: '1'}]\n"
    )
    (made,) = load(printed(need("kubectl"), "kustomize", tmp_path))
    assert made["kind"] == request.param
    return made


@pytest.fixture
def sidecar(workspace: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = workspace["spec"]["template"]["spec"]["initContainers"][1]
    return found


@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_the_workspace_follows_the_schema(workspace: dict[str, Any], version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    if workspace["kind"] == "StatefulSet":
        workspace["spec"]["serviceName"] = "workspace"
    kubernetes_validate.validate(workspace, version, strict=True)


def test_the_exporter_starts_after_the_folder_of_its_ledger_was_made(
    workspace: dict[str, Any],
) -> None:
    pod = workspace["spec"]["template"]["spec"]
    maker, sidecar = pod["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    (made,) = re.findall(r"mkdir -p (\S+)", maker["command"][-1])
    (ledger,) = (mount for mount in sidecar["volumeMounts"] if "subPath" in mount)
    (home,) = maker["volumeMounts"]
    assert home["name"] == ledger["name"] == pod["volumes"][0]["name"]
    assert made == f"{home['mountPath']}/{ledger['subPath']}"
    assert f"install --directory --mode=1777 {ledger['mountPath']}\n" in (
        DEPLOY / "Containerfile"
    ).read_text("utf-8")


def test_the_exporter_reads_the_home_and_cannot_write_it(sidecar: dict[str, Any]) -> None:
    (variable,) = sidecar["env"]
    (home,) = (mount for mount in sidecar["volumeMounts"] if "subPath" not in mount)
    assert variable == {"name": "GEMINI_DIR", "value": f"{home['mountPath']}/.gemini"}
    assert home["readOnly"] is True


def test_the_workspace_is_left_as_it_was(workspace: dict[str, Any]) -> None:
    kind = workspace["kind"]
    (before,) = load(WORKSPACE.format(kind=kind))
    template = workspace["spec"]["template"]
    assert [made["image"] for made in template["spec"].pop("initContainers")] == [
        "registry.example/exporter:1"
    ] * 2
    del template["metadata"]["labels"]["gemini-cli-exporter"]
    assert workspace == before


def test_no_container_has_rights_that_it_does_not_need(workspace: dict[str, Any]) -> None:
    for container in workspace["spec"]["template"]["spec"]["initContainers"]:
        security = container["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}


def test_the_monitor_selects_the_sidecar(
    workspace: dict[str, Any], sidecar: dict[str, Any]
) -> None:
    (monitor,) = load((KUBERNETES / "podmonitor.yaml").read_text("utf-8"))
    labels = workspace["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in [port["name"] for port in sidecar["ports"]]


def test_series_outlive_the_pod(tmp_path: Path) -> None:
    """Prometheus itself relabels targets as the operator would hand them over."""
    (monitor,) = load((KUBERNETES / "podmonitor.yaml").read_text("utf-8"))
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    relabelings = [
        {names.get(key, key): value for key, value in rule.items()}
        for rule in endpoint["relabelings"]
    ]
    pods = [
        {
            "__meta_kubernetes_namespace": "dev",
            "__meta_kubernetes_pod_name": pod,
            "__meta_kubernetes_pod_label_app_kubernetes_io_instance": name,
            "namespace": "dev",
            "pod": pod,
            "container": "gemini-cli-exporter",
            "endpoint": "gemini-metrics",
        }
        for pod, name in (("ana-0", ""), ("ben-5d4f8-x7kzp", "ben"))
    ]
    static = [{"targets": [f"10.0.0.{n}:9742"], "labels": pod} for n, pod in enumerate(pods)]
    job = {"job_name": "pods", "relabel_configs": relabelings, "static_configs": static}
    config = tmp_path / "prometheus.yml"
    config.write_text(json.dumps({"scrape_configs": [job]}))
    command = (need("promtool"), "check", "service-discovery", "--timeout=1s", config, "pods")
    found = [target["labels"] for target in json.loads(printed(*command))]
    shown = [{k: text for k, text in labels.items() if k[:2] != "__"} for labels in found]
    assert sorted(shown, key=lambda labels: labels["instance"]) == [
        {"job": "gemini-cli", "instance": "dev/ana-0", "namespace": "dev"},
        {"job": "gemini-cli", "instance": "dev/ben", "namespace": "dev"},
    ]


@pytest.fixture(scope="module")
def objects() -> list[dict[str, Any]]:
    script = KUBERNETES / "monitoring.py"
    made = json.loads(printed(sys.executable, script, "release=prometheus", cwd=Path("/")))
    assert made["kind"] == "List"
    items: list[dict[str, Any]] = made["items"]
    return items


def test_every_object_has_a_name_of_its_own_and_the_labels_that_were_given(
    objects: list[dict[str, Any]],
) -> None:
    names = [(made["kind"], made["metadata"]["name"]) for made in objects]
    assert len(set(names)) == len(names)
    for _, name in names:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name)
    assert all(made["metadata"]["labels"]["release"] == "prometheus" for made in objects)


def test_the_rules_are_those_of_prometheus(objects: list[dict[str, Any]]) -> None:
    rules = {
        made["metadata"]["name"]: made["spec"]
        for made in objects
        if made["kind"] == "PrometheusRule"
    }
    files = {name: DEPLOY / "prometheus" / f"{name}.yaml" for name in RULES}
    assert rules == {name: yaml.safe_load(file.read_text("utf-8")) for name, file in files.items()}
    # The operator's schema keys groups by name and knows no other field at the top.
    for spec in rules.values():
        groups = [group["name"] for group in spec["groups"]]
        assert spec.keys() == {"groups"}
        assert len(set(groups)) == len(groups)


def test_the_dashboards_are_those_of_grafana(objects: list[dict[str, Any]]) -> None:
    maps = [made for made in objects if made["kind"] == "ConfigMap"]
    found = {
        name.removeprefix("gemini-cli-"): json.loads(text)
        for made in maps
        for name, text in made["data"].items()
    }
    files = (PROJECT / "grafana" / "dashboards").glob("*.json")
    assert found == {file.name: json.loads(file.read_bytes()) for file in files}
    for made in maps:
        assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert len(json.dumps(made)) < 2**20  # More, Kubernetes does not take.


def test_config_maps_follow_the_schema(objects: list[dict[str, Any]]) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for made in objects:
        if made["kind"] == "ConfigMap":
            kubernetes_validate.validate(made, "1.37", strict=True)


def test_an_argument_that_is_no_label_is_refused() -> None:
    script = KUBERNETES / "monitoring.py"
    with pytest.raises(AssertionError, match="give labels as NAME=VALUE"):
        printed(sys.executable, script, "prometheus")
