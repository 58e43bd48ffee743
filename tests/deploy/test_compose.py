"""Runs the services of deploy/compose.yaml as processes of this machine, by the commands that stand there."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import yaml

from benchmarks.operations.prometheus import HOW, PROGRAM, prometheus
from deploy.compose_plan import NAME, plan_with_store
from polyrec.cli.main import main
from polyrec.planner.plan import load_plan, save_plan
from polyrec.server.grpc.messages import SERVICE, message_class
from tests.forking import start

ROOT = Path(__file__).parents[2]
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(PROGRAM is None, reason=f"no Prometheus ({HOW})"),
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="Debian: apt-get install redis-server"),
]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def running(command: Sequence[str], folder: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, cwd=folder, env=os.environ | environment, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compose") / "demo"
    assert main(["demo", "--once", "--port", "0", "--rows", "20000", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server with the service's own command."""
    port = free_port()
    command = [*SERVICES["redis"]["command"], "--port", str(port), "--bind", "127.0.0.1"]
    with running(command, tmp_path_factory.mktemp("redis")):
        check = ["redis-cli", "-p", str(port), "ping"]
        assert SERVICES["redis"]["healthcheck"]["test"][1:] == ["redis-cli", "ping"]
        end = time.monotonic() + 30
        while subprocess.run(check, capture_output=True).returncode:
            assert time.monotonic() < end
        yield port


def test_a_days_load_is_routed_among_paths_whose_cold_rows_are_in_redis(
    demo: Path, redis: int, tmp_path: Path
) -> None:
    plan = plan_with_store(demo, f"redis://127.0.0.1:{redis}", hot=0.3)
    assert len(plan.paths) >= 2
    save_plan(plan, demo / NAME)
    serve, flag, file = SERVICES["polyrec"]["command"]
    assert (serve, flag, file) == ("serve", "--plan", f"/demo/{NAME}")
    load = [
        argument.replace("/locustfile.py", str(ROOT / "loadtest" / "locustfile.py"))
        .replace("--autostart", "--headless")
        .replace("--run-time=30m", "--run-time=8s")
        for argument in SERVICES["locust"]["command"]
    ]
    settings = {
        name: value.replace("/demo", str(demo)) for name, value in SERVICES["locust"]["environment"].items()
    }
    (scraped,) = yaml.safe_load((ROOT / "deploy" / "prometheus" / "targets.compose.yml").read_text())
    with start({"plan": demo / NAME, "port": 0, "grpc_port": 0}) as server:
        assert server.grpc is not None
        with grpc.insecure_channel(server.grpc) as channel:
            # serves under the name by which its metrics are grouped
            ready = channel.unary_unary(f"/{SERVICE}/ModelReady")
            request = message_class("ModelReadyRequest")(name=scraped["labels"]["model"])
            answer = ready(request.SerializeToString(), timeout=30)
            assert message_class("ModelReadyResponse").FromString(answer).ready
        assert {path.name for path in load_plan(demo / NAME).paths} == {
            path["name"] for path in httpx.get(f"{server.url}/v1/paths", timeout=30).json()["paths"]
        }
        target = server.url.removeprefix("http://")
        load = [argument.replace("http://polyrec:8000", server.url) for argument in load]
        command = [sys.executable, "-m", "locust", *load, "--slo-share=0"]
        with prometheus([target], every="1s") as watching:
            # how fast this machine is does not matter here
            with running(command, tmp_path, **settings) as users:
                assert users.wait(120) == 0
            answered = 'sum(polyrec_requests_total{endpoint="rank",outcome=~"ok|late"}) > 50'
            watching.until(answered)
            watching.until('sum(polyrec_embedding_hits_total{tier="remote"}) > 0')
        checked = [sys.executable, "-m", "polyrec.server.app.healthcheck", str(server.process.pid)]
        assert subprocess.run(checked).returncode == 0
    keys = subprocess.run(["redis-cli", "-p", str(redis), "dbsize"], capture_output=True, check=True).stdout
    assert int(keys) > 0
