"""Changes of a whole cluster in a network namespace."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from benchmarks.http.protocols import random_tensors
from polyrec.loadtest.traffic.request_bodies import infer_body
from polyrec.models.bundle.bundle import Bundle
from polyrec.planner.plan import save_plan, single_path_plan

ROOT = Path(__file__).parents[2]
NAMESPACE = ("unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose sockets have names as short as they must be."""
    with TemporaryDirectory(prefix="polyrec-") as folder:
        yield Path(folder)


@pytest.mark.long
def test_a_roll_keeps_the_replicas_of_the_load_and_another_cluster_gets_its_ingress(
    bundle: Bundle, tmp_path: Path, short_path: Path
) -> None:
    shell = ("sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    if os.geteuid() or subprocess.run([*NAMESPACE, *shell, "true"], capture_output=True).returncode:
        pytest.skip("a network namespace takes root, unshare and ip")
    plans = [tmp_path / "plan.json", tmp_path / "other.json"]
    for plan in plans:
        save_plan(single_path_plan(bundle.path, bundle.name, "onnx"), plan)
    request = tmp_path / "request.json"
    request.write_bytes(infer_body(random_tensors(bundle, 2, np.random.default_rng(1)), binary=False)[0])
    environ = {**os.environ, "RAY_TMPDIR": str(short_path), "TMPDIR": str(short_path)}
    walk = [sys.executable, "-m", "tests.cluster.changed_cluster", *map(str, plans), str(request)]
    done = subprocess.run([*NAMESPACE, *shell, *walk], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
