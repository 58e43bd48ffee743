"""The life of a server process: start, ready, drain, end; and every way in which it may not start."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
import uvloop

from polyrec.models.bundle.bundle import Bundle
from polyrec.planner.plan import save_plan, single_path_plan
from polyrec.server.app.listening import duplicate_listener, listen
from polyrec.server.child import StartFailed, environ_of, start
from polyrec.server.http.connection.limits import ACCEPTS_PER_ITERATION
from tests import forking
from tests.server.app.test_drain import handles_sigterm

BODY = b'{"instances": [{}]}'
HEAD = b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Length: 19\r\nExpect: 100-continue\r\n\r\n"


def test_it_ends_in_order_while_another_plan_is_opened(bundle: Bundle, tmp_path: Path) -> None:
    """The interpreter's shutdown aborted the process (status -6) in the thread that opens it.

    The paths take far longer to open than the two seconds after which the server ends.
    """
    plan = single_path_plan(bundle.path, "table", "onnx", "cpu")
    save_plan(plan, tmp_path / "plan.json")
    paths = tuple(plan.paths[0].model_copy(update={"name": f"p{i}@cpu"}) for i in range(240))
    save_plan(plan.model_copy(update={"paths": paths}), tmp_path / "long.json")
    token = "a token of sixteen and more"
    settings = {"plan": tmp_path / "plan.json", "admin_token": token, "drain_grace_s": 0}
    body = json.dumps({"plan": str(tmp_path / "long.json")})
    head = f"POST /v1/admin/reload HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
    with (tmp_path / "log").open("w") as log, start(settings | {"drain_timeout_s": 0.1}, log) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), 60) as client:
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            with httpx.Client(base_url=server.url) as http:
                assert http.get("/livez").status_code == 200  # the call has been read
            server.process.send_signal(signal.SIGTERM)
            answer = client.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"the server is shutting down; retry on another" in answer
        assert server.process.wait(timeout=60) == 0
    assert (
        "reload by 'POLYREC_ADMIN_TOKEN' from 127.0.0.1: 503: canceled: the server"
        in (tmp_path / "log").read_text()
    )


def test_the_first_requests_import_nothing(
    bundle_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """numpy.ma took 10 ms of it: it was late, and a new server's error budget was used 100 times."""
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    file = tmp_path / "log"
    with (
        file.open("w") as log,
        start({"bundle": bundle_dir}, stderr=log) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        before = file.read_text()
        assert http.post("/v1/predict", content=BODY).status_code == 200
        assert http.get("/v1/status").status_code == 200
        assert http.get("/metrics").status_code == 200
        assert file.read_text().removeprefix(before) == ""


@contextmanager
def inherited(handler: signal.Handlers) -> Iterator[None]:
    """Context in which processes are started that ignore SIGHUP, or do not."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_it_drains_before_it_ends_and_its_log_tells_which_signal_ended_it_and_how(
    bundle_dir: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """Without tokens and a certificate to read again, SIGHUP loses no request either."""
    with (
        (tmp_path / "log").open("w") as log,
        inherited(signal.SIG_DFL),
        start({"bundle": bundle_dir, "drain_grace_s": 30, "drain_timeout_s": 7}, stderr=log) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        assert http.get("/readyz").status_code == 200
        server.process.send_signal(number)
        while http.get("/readyz").status_code == 200:
            assert server.process.poll() is None
        assert http.get("/livez").json() == {"live": True, "state": "draining"}
        assert http.post("/v1/predict", content=BODY).status_code == 200
        server.process.send_signal(number)  # a second one does not wait for the grace
        assert server.process.wait(timeout=60) == 0
    lines = [line.partition("polyrec.server: ")[2] for line in (tmp_path / "log").read_text().splitlines()]
    assert lines == [
        f"{number.name}: draining; new connections are accepted for 30 s more, then the server ends",
        f"{number.name}: draining; new connections are accepted for 0 s more, then the server ends",
        "no more connections are accepted; requests in progress have 7 s",
        "the server has ended",
    ]


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.long)])
def test_one_that_was_started_to_outlive_its_terminal_serves_on_after_it(
    bundle_dir: Path, processes: int
) -> None:
    """As under nohup: its SIGHUP comes when the operator logs out."""
    with inherited(signal.SIG_IGN), start({"bundle": bundle_dir, "processes": processes}) as server:
        server.process.send_signal(signal.SIGHUP)
        with httpx.Client(base_url=server.url) as http:
            for _ in range(20):
                assert http.get("/readyz").status_code == 200


@pytest.mark.parametrize("rereads", [True, False])
@pytest.mark.parametrize("processes", [1, 2])
def test_sighup_while_it_imports_is_handled_as_later(
    bundle_dir: Path, tmp_path: Path, rereads: bool, processes: int
) -> None:
    """It reads tokens again, or ends in order; by default it kills a process that has no handler yet."""
    (tmp_path / "tokens.json").write_text('{"clients": [], "anonymous": {}}')
    given = {"bundle": bundle_dir, "processes": processes, "drain_grace_s": 0}
    given |= {"tokens": tmp_path / "tokens.json"} if rereads else {}
    command = [sys.executable, "-m", "polyrec.server"]
    with (
        inherited(signal.SIG_DFL),
        subprocess.Popen(command, env=environ_of(given), stdout=subprocess.PIPE, text=True) as process,
    ):
        try:
            while not handles_sigterm(process.pid):
                assert process.poll() is None
            process.send_signal(signal.SIGHUP)
            assert process.stdout is not None
            assert bool(process.stdout.readline()) == rereads, "whether it becomes ready"
        finally:
            process.terminate()
        assert process.wait(timeout=60) == 0


def test_while_it_drains_every_answer_ends_its_connection(bundle_dir: Path) -> None:
    """A client that keeps its connection would send the next request to a server that has ended."""
    pages = ("/v1/predict", "/v1/predict?", "/readyz")
    with forking.start({"bundle": bundle_dir, "drain_grace_s": 30}) as server, ExitStack() as stack:
        clients = {
            (page, known): stack.enter_context(httpx.Client(base_url=server.url))
            for page in pages
            for known in (False, True)
        }

        def ask(client: httpx.Client, page: str) -> str | None:
            answer = client.get(page) if page == "/readyz" else client.post(page, content=BODY)
            return answer.headers.get("connection")

        for (page, known), client in clients.items():
            if known:
                assert [ask(client, page) for _ in range(2)] == [None, None]
        server.process.send_signal(signal.SIGTERM)
        while httpx.get(f"{server.url}/readyz").status_code == 200:
            pass
        assert {ask(client, page) for (page, _), client in clients.items()} == {"close"}
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=60) == 0


def test_a_full_disk_does_not_stop_serving(bundle_dir: Path, tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("POLYREC_")}
    environ |= {"POLYREC_BUNDLE": str(bundle_dir), "POLYREC_PORT": str(port), "POLYREC_DRAIN_GRACE_S": "0"}
    environ |= {"POLYREC_DEFAULT_BUDGET_MS": "60000"}
    with open("/dev/full", "w") as full, (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "polyrec.server"], env=environ, stdout=full, stderr=log
        )
    try:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", transport=httpx.HTTPTransport(retries=20)
        ) as http:
            while http.get("/readyz").status_code != 200:
                assert process.poll() is None
            assert http.post("/v1/predict", content=BODY).status_code == 200
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    said = (tmp_path / "log").read_text()
    assert "ready, but standard output cannot be written: No space left on device" in said
    assert "Traceback" not in said


def test_a_request_in_flight_is_answered_before_the_end(bundle_dir: Path) -> None:
    with forking.start({"bundle": bundle_dir, "drain_grace_s": 0}) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(HEAD)
            assert connection.recv(100).startswith(b"HTTP/1.1 100")  # its body is being waited for
            server.process.send_signal(signal.SIGTERM)
            # From here on new connections are refused: the server has stopped accepting.
            while True:
                try:
                    socket.create_connection((host, int(port)), timeout=60).close()
                except ConnectionRefusedError:
                    break
                except ConnectionResetError:  # it was waiting to be accepted when the listener closed
                    continue
            connection.sendall(BODY)
            answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer
        assert server.process.wait(timeout=60) == 0


def test_a_client_that_never_finishes_does_not_hold_the_end_for_ever(
    bundle_dir: Path, tmp_path: Path
) -> None:
    settings = {"bundle": bundle_dir, "drain_grace_s": 0, "drain_timeout_s": 1}
    with (tmp_path / "log").open("w") as log, forking.start(settings, stderr=log) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(HEAD)
            assert connection.recv(100).startswith(b"HTTP/1.1 100")  # its body is being waited for
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(timeout=60) == 0
            assert connection.recv(100).startswith(b"HTTP/1.1 503")
    said = (tmp_path / "log").read_text()
    assert "HTTP limit drain" in said
    assert "Cancel" not in said


def failure(environ: dict[str, str]) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("POLYREC_")}
    process = subprocess.run(
        [sys.executable, "-m", "polyrec.server"],
        env=clean | environ,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 2
    reason = json.loads(process.stdout)["error"]
    assert process.stderr.endswith(f"polyrec: error: {reason}\n")
    return process.stderr


def assert_one_line(said: str) -> None:
    assert said.startswith("polyrec: error: ")
    assert said.count("\n") == 1, said


def test_a_server_that_cannot_start_says_why_in_one_line(bundle_dir: Path, tmp_path: Path) -> None:
    corrupt = tmp_path / "corrupt"
    corrupt.mkdir()
    for file in bundle_dir.iterdir():
        content = file.read_bytes()
        flip = file.name.startswith("embeddings")
        (corrupt / file.name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if flip else content)
    with listen("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        said = {
            "corrupt": failure({"POLYREC_BUNDLE": str(corrupt), "POLYREC_PORT": "0"}),
            "port": failure({"POLYREC_BUNDLE": str(bundle_dir), "POLYREC_PORT": port}),
            "unknown": failure({"POLYREC_BUNDEL": str(bundle_dir)}),
        }
    for line in said.values():
        assert_one_line(line)
    assert "is corrupt" in said["corrupt"]
    assert "Address already in use" in said["port"]
    assert "POLYREC_BUNDEL" in said["unknown"]


def test_a_child_that_fails_to_start_raises_in_its_parent(tmp_path: Path) -> None:
    reason = r"status 2 before it was ready: .*there is no manifest.json"
    with (tmp_path / "log").open("w") as log, pytest.raises(StartFailed, match=reason):
        start({"bundle": tmp_path / "nothing"}, stderr=log)
    said = (tmp_path / "log").read_text()
    assert_one_line(said)
    assert "there is no manifest.json" in said


def test_the_ready_line_is_json_for_programs(bundle_dir: Path) -> None:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("POLYREC_")}
    environ |= {"POLYREC_BUNDLE": str(bundle_dir), "POLYREC_PORT": "0", "POLYREC_DRAIN_GRACE_S": "0"}
    process = subprocess.Popen(
        [sys.executable, "-m", "polyrec.server"], env=environ, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    assert ready["event"] == "ready"
    assert ready["pid"] == process.pid
    assert ready["paths"] == ["table@cpu"]
    assert httpx.get(f"{ready['url']}/readyz").status_code == 200
    process.terminate()
    assert process.wait(timeout=60) == 0
    assert process.stdout.read() == ""
    process.stdout.close()


def test_a_round_of_the_loop_accepts_several_connections() -> None:
    """Where each round takes milliseconds, the last of a crowd does not wait for as many of them."""
    crowd = 4 * ACCEPTS_PER_ITERATION
    accepted: list[asyncio.BaseTransport] = []

    class Counting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.append(transport)

    async def run() -> int:
        loop = asyncio.get_running_loop()
        listener = listen("127.0.0.1", 0)
        servers = [await loop.create_server(Counting, sock=own) for own in duplicate_listener(listener)]
        clients = [socket.create_connection(listener.getsockname()) for _ in range(crowd)]
        rounds = 0
        while len(accepted) < crowd and rounds < 10 * crowd:
            await asyncio.sleep(0)
            rounds += 1
        for closing in (*servers, *accepted, *clients):
            closing.close()
        return rounds

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run()) < crowd / 2
    assert len(accepted) == crowd
