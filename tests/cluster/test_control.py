"""Changes of a whole cluster in a network namespace, and what a stopped Ray leaves."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from benchmarks.fleet import namespaces
from benchmarks.http.protocols import random_tensors
from polyrec.cli.main import main
from polyrec.cluster.haproxy_process import HAProxy, private_folder
from polyrec.loadtest.traffic.request_bodies import infer_body
from polyrec.models.bundle.bundle import Bundle
from polyrec.planner.plan import save_plan, single_path_plan

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    from ray import serve  # noqa: F401

ROOT = Path(__file__).parents[2]


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose sockets have names as short as they must be."""
    with TemporaryDirectory(prefix="polyrec-") as folder:
        yield Path(folder)


@pytest.mark.long
def test_a_roll_keeps_the_replicas_of_the_load_and_another_cluster_gets_its_ingress(
    bundle: Bundle, tmp_path: Path, short_path: Path
) -> None:
    if not namespaces.available():
        pytest.skip("a network namespace takes root, unshare and ip")
    plans = [tmp_path / "plan.json", tmp_path / "other.json"]
    for plan in plans:
        save_plan(single_path_plan(bundle.path, bundle.name, "onnx"), plan)
    request = tmp_path / "request.json"
    request.write_bytes(infer_body(random_tensors(bundle, 2, np.random.default_rng(1)), binary=False)[0])
    walk = [sys.executable, "-m", "tests.cluster.changed_cluster", *map(str, plans), str(request)]
    environ = namespaces.environment(str(short_path))
    done = subprocess.run([*namespaces.ENTER, *walk], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_down_stops_haproxy_that_a_stopped_ray_left(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        port, head = one.getsockname()[1], other.getsockname()[1]
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{head}")  # where nothing listens
    folder = private_folder(short_path / f"polyrec-cluster-{os.getuid()}-{port}")
    asyncio.run(HAProxy(folder, "127.0.0.1", port).configure([]))
    master = os.pidfd_open(int((folder / "haproxy.pid").read_text()))
    try:
        assert main(["cluster", "down"]) == 0
        assert f"no Ray is running; stopped HAProxy, which it left at port {port}" in capsys.readouterr().out
        poller = select.poll()
        poller.register(master, select.POLLIN)
        assert poller.poll(30_000)
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(master, signal.SIGTERM)
        os.close(master)
    assert main(["cluster", "down"]) == 2
    assert "no Ray is running" in capsys.readouterr().err
