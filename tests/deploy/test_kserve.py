"""Checks the manifests for KServe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

from polyrec.cli.main import build_parser

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kserve"
CHECK = Path(__file__).with_name("check_kserve.py")


def check(*paths: Path) -> str:
    """Returns the fields that the types of KServe do not have."""
    command = [sys.executable, str(CHECK), *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False).stdout.strip()


def test_kserve_has_every_field() -> None:
    assert check(*sorted(FOLDER.glob("*.yaml"))) == ""


def test_the_check_finds_what_kserve_does_not_have(tmp_path: Path) -> None:
    text = (FOLDER / "serving-runtime.yaml").read_text().replace("args:", "arguments:")
    (tmp_path / "wrong.yaml").write_text(text)
    assert check(tmp_path / "wrong.yaml") == "ServingRuntime.spec.containers[0].arguments"


def test_the_command_line_takes_the_arguments() -> None:
    runtime = yaml.safe_load((FOLDER / "serving-runtime.yaml").read_text())
    [container] = runtime["spec"]["containers"]
    given = build_parser().parse_args(container["args"])
    assert given.port == container["ports"][0]["containerPort"]


def test_the_service_names_the_runtime_and_a_format_that_it_has() -> None:
    runtime = yaml.safe_load((FOLDER / "serving-runtime.yaml").read_text())
    model = yaml.safe_load((FOLDER / "inference-service.yaml").read_text())["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["modelFormat"]["name"] in [f["name"] for f in runtime["spec"]["supportedModelFormats"]]
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]


def test_a_pod_is_killed_only_after_its_drain() -> None:
    runtime = yaml.safe_load((FOLDER / "serving-runtime.yaml").read_text())
    service = yaml.safe_load((FOLDER / "inference-service.yaml").read_text())
    [container] = runtime["spec"]["containers"]
    given = build_parser().parse_args(container["args"])
    grace_s = service["spec"]["predictor"].get("terminationGracePeriodSeconds", 30)
    assert grace_s > given.drain_grace_s + given.drain_timeout_s
