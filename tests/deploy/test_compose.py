"""The compose stack: what every service may do, and that its parts fit together."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter import sources
from tests.deploy.tools import DEPLOY, PROJECT, need, printed

STACKS = ("compose.yaml", "demo.yaml")


def resolved(name: str, home: str = "/home/ana/.gemini") -> dict[str, Any]:
    """Return a stack as compose understands it, with anchors, variables and paths filled in."""
    command = (need("docker-compose"), "--file", DEPLOY / name, "config", "--format", "json")
    stack: dict[str, Any] = json.loads(printed(*command, environ={"GEMINI_DIR": home}))
    return stack


@pytest.fixture(params=STACKS)
def stack(request: pytest.FixtureRequest) -> dict[str, Any]:
    return resolved(request.param)


def bound(service: dict[str, Any]) -> dict[str, str]:
    """Return what of this machine a service sees: target -> source."""
    mounts = [mount for mount in service.get("volumes", ()) if mount["type"] == "bind"]
    assert all(mount["read_only"] for mount in mounts)
    return {mount["target"]: mount["source"] for mount in mounts}


def test_every_service_runs_without_rights_on_a_read_only_file_system(
    stack: dict[str, Any],
) -> None:
    for service in stack["services"].values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_ports_are_open_to_this_machine_only(stack: dict[str, Any]) -> None:
    open_ports = {
        port["published"]: port["host_ip"]
        for service in stack["services"].values()
        for port in service.get("ports", ())
    }
    assert open_ports == {"3000": "127.0.0.1", "9090": "127.0.0.1"}


def test_the_exporter_has_no_way_out(stack: dict[str, Any]) -> None:
    networks = stack["services"]["exporter"]["networks"]
    assert all(stack["networks"][name]["internal"] for name in networks)


def test_foreign_images_are_pinned_to_a_release(stack: dict[str, Any]) -> None:
    images = {name: service["image"] for name, service in stack["services"].items()}
    assert images.pop("exporter") == "gemini-cli-exporter"
    for image in images.values():
        assert re.fullmatch(r"docker\.io/[a-z/]+:v?\d+\.\d+\.\d+", image)


def test_every_service_is_checked(stack: dict[str, Any]) -> None:
    for name, service in stack["services"].items():
        # The exporter's check is in its image.
        assert ("healthcheck" in service) == (name != "exporter")


def test_nobody_can_log_in_with_a_password_that_everybody_knows(stack: dict[str, Any]) -> None:
    grafana = stack["services"]["grafana"]["environment"]
    assert grafana["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert grafana["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert not [name for name in grafana if "PASSWORD" in name]


def test_all_that_is_mounted_from_the_repository_is_there(stack: dict[str, Any]) -> None:
    for service in stack["services"].values():
        for target, source in bound(service).items():
            assert target == "/gemini" or Path(source).exists(), source


@pytest.mark.parametrize(("name", "command"), [("compose.yaml", "serve"), ("demo.yaml", "demo")])
def test_the_exporter_takes_what_it_is_given(name: str, command: str) -> None:
    exporter = resolved(name)["services"]["exporter"]
    assert exporter["environment"]["TZ"]
    asked = sources.load(exporter.get("command") or (), exporter["environment"], "linux")
    assert asked.command == command


def test_the_home_is_mounted_read_only_and_never_made() -> None:
    exporter = resolved("compose.yaml")["services"]["exporter"]
    assert bound(exporter) == {"/gemini": "/home/ana/.gemini"}
    (home,) = (mount for mount in exporter["volumes"] if mount["type"] == "bind")
    assert home["bind"]["create_host_path"] is False


def test_the_home_is_that_of_the_user_unless_given() -> None:
    exporter = resolved("compose.yaml", home="")["services"]["exporter"]
    assert bound(exporter) == {"/gemini": str(Path.home() / ".gemini")}


def test_the_demo_differs_only_in_its_exporter_and_in_where_it_keeps_things() -> None:
    real, demo = (resolved(name) for name in STACKS)
    assert real["name"] != demo["name"]
    exporter = demo["services"].pop("exporter")
    assert exporter["command"][0] == "demo"
    assert bound(exporter) == {}
    del real["services"]["exporter"]
    assert demo["services"] == real["services"]
    assert demo["networks"].keys() == real["networks"].keys()
    assert real["volumes"].keys() - demo["volumes"].keys() == {"ledger"}
    for name, volume in demo["volumes"].items():
        assert volume["name"] != real["volumes"][name]["name"]


def test_prometheus_takes_its_configuration_and_the_rules(
    stack: dict[str, Any], tmp_path: Path
) -> None:
    for target, source in bound(stack["services"]["prometheus"]).items():
        place = tmp_path / Path(target).relative_to("/etc/prometheus")
        copy = shutil.copytree if Path(source).is_dir() else shutil.copy
        copy(source, place)
    config = tmp_path / "prometheus.yml"
    for name in yaml.safe_load(config.read_text("utf-8"))["rule_files"]:
        assert (tmp_path / name).is_file()
    printed(need("promtool"), "check", "config", config)


def test_prometheus_asks_the_exporter_under_a_name_that_it_allows(stack: dict[str, Any]) -> None:
    config = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text("utf-8"))
    ((job,),) = (config["scrape_configs"],)
    assert job["static_configs"] == [{"targets": ["exporter:9742"]}]
    exporter = stack["services"]["exporter"]["environment"]
    assert exporter["GEMINI_CLI_EXPORTER_WEB_ALLOWED_HOST"] == "exporter"


def test_alertmanager_is_told_where_its_configuration_is(stack: dict[str, Any]) -> None:
    service = stack["services"]["alertmanager"]
    (flag,) = (flag for flag in service["command"] if flag.startswith("--config.file="))
    ((target, source),) = bound(service).items()
    config = Path(source) / Path(flag.partition("=")[2]).relative_to(target)
    printed(need("amtool"), "check-config", config)


def test_grafana_finds_the_data_sources_and_the_dashboards(stack: dict[str, Any]) -> None:
    service = stack["services"]["grafana"]
    mounts = bound(service)
    provisioning = Path(mounts["/etc/grafana/provisioning"])
    prometheus = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text("utf-8"))
    (sources,) = (provisioning / "datasources").iterdir()
    for source in yaml.safe_load(sources.read_text("utf-8"))["datasources"]:
        assert source["url"].split("/")[2].split(":")[0] in stack["services"]
        if source["type"] == "prometheus":
            interval = prometheus["global"]["scrape_interval"]
            assert source["jsonData"]["timeInterval"] == interval
    (providers,) = (provisioning / "dashboards").iterdir()
    (provider,) = yaml.safe_load(providers.read_text("utf-8"))["providers"]
    assert mounts[provider["options"]["path"]] == str(PROJECT / "grafana" / "dashboards")
    home = Path(service["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (Path(mounts[str(home.parent)]) / home.name).is_file()
