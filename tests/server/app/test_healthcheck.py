"""The image's health check finds the server by what the kernel says."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from polyrec.server.app import healthcheck
from polyrec.server.app.healthcheck import listening
from polyrec.server.app.listening import listen
from polyrec.server.child import ServerProcess

ROOT = Path(__file__).parents[3]


def test_a_ready_server_is_healthy_whatever_its_port(server: ServerProcess) -> None:
    """The port was given by the system; POLYREC_PORT says another."""
    done = subprocess.run(
        [sys.executable, "-m", "polyrec.server.app.healthcheck", str(server.process.pid)],
        cwd=ROOT,
        env=os.environ | {"POLYREC_PORT": "1"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "")


class Unready(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(503)

    def log_message(self, format: str, *args: object) -> None:
        return


def test_a_server_that_is_not_ready_is_not_healthy() -> None:
    with HTTPServer(("127.0.0.1", 0), Unready) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        place = f"127.0.0.1:{http.server_port}"
        try:
            assert place in listening(str(os.getpid()))
            assert not healthcheck.ready(place)
        finally:
            http.shutdown()
            thread.join()


def test_a_process_that_does_not_listen_is_unhealthy(capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert healthcheck.main([str(process.pid)]) == 1
    assert capsys.readouterr().out == "nothing listens\n"


@pytest.mark.parametrize(
    ("host", "shown"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("::", "[::1]")],
)
def test_addresses_are_read_as_the_kernel_writes_them(host: str, shown: str) -> None:
    try:
        listener = listen(host, 0)
    except Exception:
        pytest.skip(f"this machine has no {host}")
    with listener:
        assert f"{shown}:{listener.getsockname()[1]}" in listening(str(os.getpid()))
