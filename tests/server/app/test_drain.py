"""Draining: no accepted connection is reset or left without an answer."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from polyrec.planner.plan import Plan, PlannedLane, save_plan
from polyrec.server.app.drain import accept_queue_length, drop_new_connections
from polyrec.server.app.listening import listen
from polyrec.server.child import ServerProcess
from tests.forking import start

ROOT = Path(__file__).parents[3]
BODY = b'{"instances": [{}]}'
POST = b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
LIVENESS_S = 90
PATHS_LOADED = 12
"""Loading that many takes longer than a signal."""


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + LIVENESS_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def one_lane(plan: Plan, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server whose only lane is a process, with budgets that are never used up."""
    path = plan.paths[0].model_copy(update={"bundle": plan.paths[0].bundle.absolute()})
    lanes = (PlannedLane(name="cpu.0", kind="process"),)
    save_plan(plan.model_copy(update={"paths": (path,), "lanes": lanes}), tmp_path / "plan.json")
    with start({"plan": tmp_path / "plan.json", "drain_grace_s": 0, "drain_timeout_s": 0.5}) as child:
        yield child


def accepts(port: int) -> bool:
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), LIVENESS_S):
        return True
    return False


def lane_of(server: ServerProcess) -> dict[str, Any]:
    (lane,) = httpx.get(f"{server.url}/v1/paths").json()["lanes"]
    return dict(lane)


def test_without_a_lane_a_server_is_not_ready_until_one_is_back(one_lane: ServerProcess) -> None:
    """From the first moment on: nothing has been asked before."""
    pages = ("/readyz", "/v2/health/ready", "/v2/models/dlrm/ready")
    gauge = "polyrec_ready "
    lane = os.pidfd_open(lane_of(one_lane)["pid"])
    signal.pidfd_send_signal(lane, signal.SIGKILL)
    seen: dict[str, tuple[int, str]] = {}

    def unready() -> bool:
        for page in pages:
            answer = client.get(page)
            if answer.status_code != 200:
                seen.setdefault(page, (answer.status_code, answer.json()["error"]))
        text = client.get("/metrics").text
        if f"{gauge}0.0" in text:
            seen.setdefault("gauge", (0, "no lane can answer"))
        return len(seen) == len(pages) + 1

    with httpx.Client(base_url=one_lane.url) as client:
        wait_until(unready)
        os.close(lane)
        assert all("no lane can answer" in why for _, why in seen.values())
        assert {status for status, _ in seen.values()} == {0, 503}
        wait_until(lambda: client.get("/readyz").status_code == 200)
        assert f"{gauge}1.0" in client.get("/metrics").text


def test_requests_waiting_at_the_end_of_the_drain_get_503(one_lane: ServerProcess) -> None:
    host, port = one_lane.url.removeprefix("http://").split(":")
    os.kill(lane_of(one_lane)["pid"], signal.SIGSTOP)  # nothing is answered any more
    with (
        socket.create_connection((host, int(port)), LIVENESS_S) as first,
        socket.create_connection((host, int(port)), LIVENESS_S) as second,
    ):
        for connection in (first, second):  # the one into the lane, the other into the queue
            connection.sendall(POST)
            for _ in range(2):  # what was sent before a page is asked for has been read when the next is
                assert httpx.get(f"{one_lane.url}/livez").status_code == 200
        one_lane.process.send_signal(signal.SIGTERM)
        for connection in (first, second):
            answer = connection.makefile("rb").read()
            assert answer.startswith(b"HTTP/1.1 503")
            assert b"connection: close" in answer.lower()
            assert b"the server is shutting down and could not answer" in answer
    assert one_lane.process.wait(timeout=LIVENESS_S) == 0


def test_clients_that_reconnect_at_once_are_answered_or_rejected_and_never_reset(bundle_dir: Path) -> None:
    """When the listener closes, its accept queue is empty."""
    ends: Counter[str] = Counter()
    with start({"bundle": bundle_dir, "drain_grace_s": 0.3, "default_budget_ms": 60_000}) as server:
        host, port = server.url.removeprefix("http://").split(":")
        answered = threading.Event()

        def ask() -> None:
            while True:
                try:
                    with socket.create_connection((host, int(port)), LIVENESS_S) as connection:
                        connection.sendall(POST)
                        answer = connection.recv(65536)
                except OSError as e:
                    ends[type(e).__name__] += 1
                    if isinstance(e, ConnectionRefusedError):
                        return
                else:
                    ends["answered" if answer.startswith(b"HTTP/1.1 200") else "closed"] += 1
                    answered.set()

        clients = [threading.Thread(target=ask) for _ in range(24)]
        for client in clients:
            client.start()
        assert answered.wait(LIVENESS_S)
        server.process.send_signal(signal.SIGTERM)
        for client in clients:
            client.join()
        assert server.process.wait(timeout=LIVENESS_S) == 0
    assert ends.pop("answered") > 0
    assert ends == {"ConnectionRefusedError": 24}


def test_a_listener_that_refuses_new_connections_keeps_those_that_it_has() -> None:
    async def run() -> None:
        with listen("127.0.0.1", 0) as listener:
            address = listener.getsockname()
            before = socket.create_connection(address)
            assert accept_queue_length(listener) == 1
            drop_new_connections(listener)
            with pytest.raises(TimeoutError):
                socket.create_connection(address, 0.05)
            assert accept_queue_length(listener) == 1
            accepted, _ = listener.accept()
            assert accept_queue_length(listener) == 0
        before.sendall(b"still here")
        assert accepted.recv(100) == b"still here"
        for connection in (before, accepted):
            connection.close()

    asyncio.run(run())


@contextmanager
def first_process(environ: dict[str, str], *command: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command as process 1 of its own namespace; its id out here."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "--pid", "--fork", "true"], check=False).returncode:
        pytest.skip("this user may not make a process namespace (unshare --pid)")
    around = subprocess.Popen(
        [unshare, "--pid", "--fork", "--kill-child", *command], env=environ, cwd=ROOT, stdout=subprocess.PIPE
    )
    try:
        children = Path(f"/proc/{around.pid}/task/{around.pid}/children")
        wait_until(lambda: bool(children.read_text().split()))
        yield around, int(children.read_text().split()[0])
    finally:
        around.kill()
        around.wait()
        assert around.stdout is not None
        around.stdout.close()


def handles_sigterm(pid: int) -> bool:
    caught = next(
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt")
    )
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize(
    ("command", "moment"),
    [
        (("-m", "polyrec.server"), "loading"),
        (("-m", "polyrec", "serve"), "importing"),
        pytest.param(("-m", "polyrec.server"), "importing", marks=pytest.mark.long),
        pytest.param(("-m", "polyrec", "serve"), "loading", marks=pytest.mark.long),
    ],
)
def test_process_1_ends_on_sigterm_before_it_is_ready(
    bundle_dir: Path, command: tuple[str, ...], moment: str
) -> None:
    """The kernel drops the signal where there is no handler."""
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("POLYREC_")}
    environ |= {"POLYREC_BUNDLE": str(bundle_dir), "POLYREC_PORT": str(port), "POLYREC_DRAIN_GRACE_S": "0"}
    with first_process(environ, sys.executable, *command) as (around, pid):
        wait_until(lambda: "libtorch" in Path(f"/proc/{pid}/maps").read_text())
        assert handles_sigterm(pid)  # while it imports, which takes seconds
        if moment == "loading":
            transport = httpx.HTTPTransport(retries=30)
            with httpx.Client(transport=transport) as http:
                state = json.loads(http.get(f"http://127.0.0.1:{port}/livez").text)["state"]
            assert state in ("loading", "ready")
        os.kill(pid, signal.SIGTERM)
        assert around.wait(timeout=LIVENESS_S) == 0


@pytest.mark.long
def test_a_server_that_loads_while_it_drains_ends_well(plan: Plan, tmp_path: Path) -> None:
    """It does not say that it is ready, and opens no gRPC port."""
    first = plan.paths[0].model_copy(update={"bundle": plan.paths[0].bundle.absolute()})
    paths = tuple(first.model_copy(update={"name": f"path{i}"}) for i in range(PATHS_LOADED))
    save_plan(plan.model_copy(update={"paths": paths}), tmp_path / "plan.json")
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("POLYREC_")}
    environ |= {"POLYREC_PLAN": str(tmp_path / "plan.json"), "POLYREC_PORT": str(port)}
    environ |= {"POLYREC_GRPC_PORT": "0", "POLYREC_DRAIN_GRACE_S": "0", "POLYREC_DRAIN_TIMEOUT_S": "3"}
    command = [sys.executable, "-m", "polyrec.server"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environ, cwd=ROOT, text=True, **pipes) as process:
        try:
            wait_until(lambda: accepts(port))
            with socket.create_connection(("127.0.0.1", port), LIVENESS_S) as connection:
                connection.sendall(POST[:-1])  # the drain waits for the rest, while the paths are loaded
                assert httpx.get(f"http://127.0.0.1:{port}/livez").json()["state"] == "loading"
                process.send_signal(signal.SIGTERM)
                said, errors = process.communicate(timeout=LIVENESS_S)
        finally:
            process.kill()
    assert (process.returncode, said) == (0, ""), errors
    assert "Traceback" not in errors
