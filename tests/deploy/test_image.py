"""Checks the image and its compose file, as far as that is possible without a container engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from polyrec.planner.placement import DIRECTORY

ROOT = Path(__file__).parents[2]


@pytest.fixture
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    return found


def test_every_service_has_bounds(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert service["mem_limit"], name
        assert service["pids_limit"] <= 512, name


def test_every_service_has_a_health_check_that_knows_where_it_listens(compose: dict[str, Any]) -> None:
    services = compose["services"]
    # the image's own asks the kernel where the server listens
    assert "healthcheck" not in services.pop("polyrec")
    for name, service in services.items():
        test = " ".join(service["healthcheck"]["test"])
        ports = [port.rpartition(":")[2] for port in service["ports"]]
        assert all(f"127.0.0.1:{port}" in test for port in ports), name


def test_the_folder_of_disk_tiers_can_be_written_although_the_root_cannot(compose: dict[str, Any]) -> None:
    service = compose["services"]["polyrec"]
    assert service["read_only"]
    assert any(volume.endswith(f":{DIRECTORY}") for volume in service["volumes"])


def test_the_ports_of_the_server_are_those_that_the_image_exposes_and_grpc_is_installed(
    compose: dict[str, Any],
) -> None:
    service = compose["services"]["polyrec"]
    published = [port.rpartition(":")[2] for port in service["ports"]]
    (exposed,) = re.findall("^EXPOSE (.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert exposed.split() == published
    assert service["environment"]["POLYREC_GRPC_PORT"] in published
    assert "grpc" in service["build"]["args"]["EXTRAS"].split(",")


def test_the_image_asks_its_health_where_the_server_listens() -> None:
    assert 'CMD ["python", "-m", "polyrec.server.app.healthcheck"]' in (ROOT / "Dockerfile").read_text()
