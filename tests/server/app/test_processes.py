"""Several server processes behind one port: they share it, may die, and end together."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from polyrec.cli.main import main
from polyrec.server.app import healthcheck
from polyrec.server.app.listening import listen
from polyrec.server.child import ServerProcess, start

BODY = b'{"instances": [{}]}'
LIVENESS_S = 60


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File of the server's standard error."""
    return tmp_path_factory.mktemp("processes") / "messages"


@pytest.fixture(scope="module")
def server(bundle_dir: Path, messages: Path) -> Iterator[ServerProcess]:
    """A server for all tests that leave it with two processes."""
    settings = {"bundle": bundle_dir, "processes": 2, "drain_grace_s": 0}
    with messages.open("w") as stderr, start(settings, stderr) as server:
        yield server


def children(pid: int) -> list[int]:
    """The server processes behind a port."""
    tasks = Path(f"/proc/{pid}/task")
    return sorted(int(p) for task in tasks.iterdir() for p in (task / "children").read_text().split())


def eventually(true: Callable[[], bool]) -> bool:
    """Whether it becomes true within the time that a live system needs."""
    until = time.monotonic() + LIVENESS_S
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def predictions(url: str) -> float:
    """Requests for predictions that the process at this address has answered."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    name = "polyrec_requests_total{"
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and "predict" in line)


def test_all_processes_answer_at_one_port_and_each_at_its_own(server: ServerProcess) -> None:
    assert len(server.processes) == len(children(server.process.pid)) == 2
    before = sum(predictions(url) for url in server.processes)
    answers = [
        httpx.post(f"{url}/v1/predict", content=BODY).json() for url in (server.url, *server.processes)
    ]
    assert answers[0] == answers[1] == answers[2]
    asked = 30
    for _ in range(asked):  # a connection each
        assert httpx.post(f"{server.url}/v1/predict", content=BODY).status_code == 200
    assert sum(predictions(url) for url in server.processes) == before + asked + 3


def test_per_process_calls_are_rejected_at_the_shared_port(server: ServerProcess) -> None:
    for method, path in (
        ("GET", "/metrics"),
        ("POST", "/v1/admin/reload"),
        ("POST", "/v2/repository/models/dlrm/unload"),
        ("GET", "/v2/models/stats"),
        ("GET", "/v2/models/dlrm/stats"),
        ("GET", "/v2/models/dlrm/versions/1/stats"),
    ):
        refused = httpx.request(method, server.url + path)
        assert refused.status_code == 421
        # with port 0 the processes' ports do not follow it
        assert "at its own port, see `processes` in the ready message" in refused.json()["error"]
    for page in ("metrics", "v2/models/dlrm/stats"):
        assert all(httpx.get(f"{url}/{page}").status_code == 200 for url in server.processes)
    assert httpx.get(f"{server.url}/v2/models/dlrm").status_code == 200
    assert httpx.post(f"{server.processes[0]}/v1/admin/reload").status_code == 403


def test_top_names_the_ports_to_ask_instead_of_the_shared_one(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", server.url, "--once"]) == 2
    assert "is shared by several processes: call each at its own port" in capsys.readouterr().err


def test_a_killed_process_is_replaced_while_the_port_goes_on_answering(server: ServerProcess) -> None:
    first, second = before = children(server.process.pid)
    os.kill(first, signal.SIGKILL)
    for _ in range(10):
        assert httpx.post(f"{server.url}/v1/predict", content=BODY, timeout=LIVENESS_S).status_code == 200
    assert eventually(lambda: len(set(children(server.process.pid)) - {first}) == 2)
    assert second in children(server.process.pid)
    assert children(server.process.pid) != before
    for url in server.processes:  # the new one has its predecessor's address
        assert httpx.post(f"{url}/v1/predict", content=BODY, timeout=LIVENESS_S).status_code == 200


def test_a_process_that_cannot_be_started_again_is_tried_again(server: ServerProcess, messages: Path) -> None:
    pid = server.process.pid
    first, second = children(pid)
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
    try:
        os.kill(first, signal.SIGKILL)
        assert eventually(lambda: "cannot be started, and is tried again" in messages.read_text())
        assert httpx.post(f"{server.url}/v1/predict", content=BODY, timeout=LIVENESS_S).status_code == 200
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    assert eventually(lambda: len(set(children(pid)) - {first}) == 2)
    assert second in children(pid)


def test_all_end_with_a_signal_and_leave_the_port_free(server: ServerProcess) -> None:
    """The last test of `server`."""
    pids = children(server.process.pid)
    assert server.stop() == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    for url in (server.url, *server.processes):
        listen("127.0.0.1", urlsplit(url).port or 0).close()


@pytest.mark.long
def test_a_process_that_hangs_is_in_the_log_and_does_not_outlive_the_others(
    bundle_dir: Path, tmp_path: Path
) -> None:
    messages, settings = tmp_path / "messages", {"bundle": bundle_dir, "processes": 2, "drain_timeout_s": 0}
    with messages.open("w") as stderr, start(settings, stderr) as server:
        hanging, _ = children(server.process.pid)
        os.kill(hanging, signal.SIGSTOP)
        assert eventually(lambda: f"server process {hanging} (" in messages.read_text())
        os.kill(hanging, signal.SIGCONT)
        assert eventually(lambda: f"server process {hanging} answers again" in messages.read_text())
        # the server ends before it could notice
        os.kill(hanging, signal.SIGSTOP)
        server.process.terminate()
        assert eventually(lambda: server.process.poll() is not None)
    told = messages.read_text()
    assert f"server process {hanging} did not end; it is killed" in told
    assert told.count("has not answered") == 1, "the other one is not reported"
    assert not Path(f"/proc/{hanging}").exists()


def test_a_process_that_is_still_starting_survives_the_signal_to_reload_files(
    bundle_dir: Path, tmp_path: Path
) -> None:
    messages, tokens = tmp_path / "messages", tmp_path / "tokens.json"
    tokens.write_text('{"clients": [], "anonymous": {}}')
    settings = {"bundle": bundle_dir, "processes": 2, "tokens": tokens, "drain_grace_s": 0}
    with messages.open("w") as stderr, start(settings, stderr) as server:
        before = children(server.process.pid)
        os.kill(before[0], signal.SIGKILL)

        def started() -> list[int]:
            new = set(children(server.process.pid)) - set(before)
            return [pid for pid in new if b"polyrec.server" in Path(f"/proc/{pid}/cmdline").read_bytes()]

        assert eventually(lambda: bool(started()))
        (new,) = started()
        server.process.send_signal(signal.SIGHUP)
        for url in server.processes:
            assert httpx.post(f"{url}/v1/predict", content=BODY, timeout=LIVENESS_S).status_code == 200
        assert new in children(server.process.pid)
    assert "SIGHUP" not in messages.read_text()


def test_a_killed_supervisor_takes_its_processes_along(bundle_dir: Path) -> None:
    with start({"bundle": bundle_dir, "processes": 2}) as server:
        pids = children(server.process.pid)
        server.process.kill()
        assert eventually(lambda: not any(_runs(pid) for pid in pids))
    # a dead process counts as a zombie while its other threads, and so its sockets, still end
    assert eventually(lambda: _refuses(urlsplit(server.url).port or 0))


def test_a_bundle_that_cannot_be_opened_ends_all_with_its_reason(tmp_path: Path) -> None:
    given = {k: v for k, v in os.environ.items() if not k.startswith("POLYREC_")}
    given |= {"POLYREC_BUNDLE": str(tmp_path), "POLYREC_PROCESSES": "2", "POLYREC_PORT": "0"}
    command = [sys.executable, "-m", "polyrec.server"]
    ended = subprocess.run(
        command, env=given, capture_output=True, text=True, timeout=LIVENESS_S, check=False
    )
    assert ended.returncode == 2
    assert f"polyrec: error: no bundle in '{tmp_path}'" in ended.stderr or "manifest.json" in ended.stderr
    assert "Traceback" not in ended.stderr
    said = json.loads(ended.stdout)
    assert said["event"] == "failed"
    assert said["error"].startswith("a server process ended with status 2 before it was ready: ")
    assert str(tmp_path) in said["error"]


def test_a_full_disk_does_not_stop_serving(bundle_dir: Path, tmp_path: Path) -> None:
    given = {k: v for k, v in os.environ.items() if not k.startswith("POLYREC_")}
    given |= {"POLYREC_BUNDLE": str(bundle_dir), "POLYREC_PROCESSES": "2", "POLYREC_PORT": "0"}
    given |= {"POLYREC_DRAIN_GRACE_S": "0"}
    messages = tmp_path / "messages"
    with open("/dev/full", "w") as full, messages.open("w") as stderr:
        command = [sys.executable, "-m", "polyrec.server"]
        server = subprocess.Popen(command, env=given, stdout=full, stderr=stderr)
    try:
        told = "ready, but standard output cannot be written: No space left on device"
        assert eventually(lambda: told in messages.read_text() or server.poll() is not None)
        assert healthcheck.main([str(server.pid)]) == 0
    finally:
        server.terminate()
        server.wait(timeout=LIVENESS_S)
    assert "Traceback" not in messages.read_text()


def _refuses(port: int) -> bool:
    with socket.socket() as connecting:
        return connecting.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
