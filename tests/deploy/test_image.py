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
    assert f"tiers:{DIRECTORY}" in service["volumes"]


def test_the_ports_of_the_server_are_those_that_the_image_exposes_and_grpc_is_installed(
    compose: dict[str, Any],
) -> None:
    service = compose["services"]["polyrec"]
    published = [port.rpartition(":")[2] for port in service["ports"]]
    (exposed,) = re.findall("^EXPOSE (.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert exposed.split() == published
    assert service["environment"]["POLYREC_GRPC_PORT"] in published
    assert "grpc" in service["build"]["args"]["EXTRAS"].split(",")


def test_locust_runs_in_the_image_that_is_built_for_the_server(compose: dict[str, Any]) -> None:
    server, load = compose["services"]["polyrec"], compose["services"]["locust"]
    assert "load" in server["build"]["args"]["EXTRAS"].split(",")
    assert load["image"] == server["image"]
    # it is in no registry
    assert load["pull_policy"] == "never"
    # `docker build -t polyrec .` makes an image without Locust
    assert server["image"] != "polyrec"


def test_compose_needs_no_variable(compose: dict[str, Any]) -> None:
    """Else `docker compose down` fails in a shell that did not set it."""
    text = (ROOT / "deploy" / "compose.yaml").read_text()
    assert [name for name in re.findall(r"\$\{(\w+)(?!\w|:-)", text)] == []


def test_a_missing_demo_is_refused_not_created(compose: dict[str, Any]) -> None:
    for name in ("polyrec", "locust"):
        (demo,) = (mount for mount in compose["services"][name]["volumes"] if isinstance(mount, dict))
        assert demo["target"] == "/demo"
        assert demo["read_only"]
        assert demo["bind"] == {"create_host_path": False}
        default = demo["source"].removeprefix("${DEMO:-").removesuffix("}")
        assert (ROOT / "deploy" / default).resolve() == ROOT / "runs" / "demo"


def test_links_in_alerts_lead_to_the_published_ports(compose: dict[str, Any]) -> None:
    """By default they have the container's name, which only other containers know."""
    for name in ("prometheus", "alertmanager"):
        service = compose["services"][name]
        (port,) = service["ports"]
        assert f"--web.external-url=http://{port.rpartition(':')[0]}" in service["command"]


def test_every_folder_of_the_package_goes_into_the_build() -> None:
    kept = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    links = {path.readlink().name for path in (ROOT / "polyrec").iterdir() if path.is_symlink()}
    assert links
    assert links <= kept


def stages() -> dict[str, str]:
    """The stages of the Dockerfile, by name; the last one, which is the image, has none."""
    parts = re.split(r"^FROM (.*)$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)[1:]
    return {
        line.partition(" AS ")[2]: text.replace("\\\n", " ")
        for line, text in zip(parts[::2], parts[1::2], strict=True)
    }


def test_the_image_says_what_is_in_it_and_where_it_comes_from() -> None:
    found = stages()
    assert set(found) == {"build", "materials", "audit", ""}
    image = found[""]
    assert "COPY --from=materials /opt/sbom.cdx.json /opt/polyrec/sbom.cdx.json" in image
    for label in ("version", "revision", "created", "source"):
        assert f'org.opencontainers.image.{label}="${{{label.upper()}}}"' in image
        assert f"ARG {label.upper()}=unknown" in image
    assert 'org.opencontainers.image.base.name="${PYTHON_IMAGE}"' in image
    assert "cyclonedx-py environment /opt/polyrec/bin/python" in found["materials"]
    assert "pip-audit --strict" in found["audit"]


def test_tools_of_the_build_are_pinned_and_stay_out_of_the_image() -> None:
    found = stages()
    tools = [
        line for text in found.values() for line in text.splitlines() if re.match(r"ARG .*(DX|AUDIT)=", line)
    ]
    assert len(tools) == 2
    assert all("==" in tool for tool in tools)
    assert "pip uninstall --yes pip" in found["build"]
    assert "pip install" not in found[""]
    copied = re.findall(r"^COPY --from=(\S+) (\S+)", found[""], re.MULTILINE)
    assert copied == [("build", "/opt/polyrec"), ("materials", "/opt/sbom.cdx.json")]


def test_image_has_no_compiler_and_runs_as_an_unprivileged_user() -> None:
    image = stages()[""]
    assert all(f"! command -v {name}" in image for name in ("cc", "gcc", "c++", "clang", "ld"))
    (user,) = re.findall(r"^USER (\S+)$", image, re.MULTILINE)
    assert int(user) >= 10_000


def test_the_image_asks_its_health_where_the_server_listens() -> None:
    assert 'CMD ["python", "-m", "polyrec.server.app.healthcheck"]' in (ROOT / "Dockerfile").read_text()
