"""A whole cluster in a network namespace: a killed replica, a roll and a change of size lose no request."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.fleet import namespaces
from polyrec.models.bundle.bundle import Bundle
from polyrec.planner.plan import save_plan, single_path_plan

ROOT = Path(__file__).parents[3]


@pytest.mark.long
@pytest.mark.skipif(find_spec("ray") is None, reason="the extra `cluster` is not installed")
def test_no_request_is_lost(bundle: Bundle, tmp_path: Path) -> None:
    if not namespaces.available():
        pytest.skip("a network namespace takes root, unshare and ip")
    plans = [tmp_path / "plan.json", tmp_path / "other.json"]
    for plan in plans:
        save_plan(single_path_plan(bundle.path, bundle.name, "onnx"), plan)
    out = tmp_path / "found.json"
    benchmark = [sys.executable, "-m", "benchmarks.fleet.cluster", str(plans[0]), "--other", str(plans[1])]
    load = ["--rate", "20", "--budget-ms", "60000", "--only", "faults", "--json", str(out)]
    subprocess.run([*benchmark, *load], cwd=ROOT, check=True)
    found = json.loads(out.read_text())["faults"]
    assert found["all"]["statuses"] == {"200": found["all"]["requests"]}, found["reasons"]
    # each step was finished under load
    assert [phase["phase"] for phase in found["phases"] if phase["took_s"] is None] == ["before"]
    assert found["served"] == [str(plans[1])] * 2
