"""Servers that fail are left out of the comparison, and what was measured of the others is kept."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest

from benchmarks.gpu.serving import Served, compare, start_all
from benchmarks.peers.__main__ import PeerCase
from benchmarks.peers.queries import PeerRows
from benchmarks.peers.servers.peer_session import encode
from benchmarks.peers.servers.starting import RunningServer, ServerName
from polyrec.models.bundle.bundle import load_bundle

ROWS = 2
CASE = PeerCase(
    rows=ROWS,
    limit_s=10.0,
    drawn=PeerRows(np.zeros((4, ROWS, 1), np.float32), np.zeros((4, ROWS, 1), np.int64)),
    form="rows",
    expected=np.full((4, ROWS), 0.5),
)


@contextmanager
def peer(name: str, probability: float) -> Iterator[RunningServer]:
    """A server that gives every row the same probability."""
    answer = encode(np.full(ROWS, probability, np.float32))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        yield RunningServer(ServerName(name, "plain"), f"http://127.0.0.1:{server.server_port}/", process)
        server.shutdown()


def test_a_server_that_answers_wrong_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[dict[str, dict[str, float]]] = []
    with peer("right", 0.5) as right, peer("wrong", 0.25) as wrong:
        up = {"wrong": wrong, "right": right}
        args = Namespace(turns=1, seconds=0.05, trials=1)
        compare(up, CASE, ["right", "wrong"], args, seen.append)
    assert "wrong is left out with 2 rows" in capsys.readouterr().out
    # after each closed loop, and after the knees
    assert [set(found) for found in seen] == [set(), {"right"}, {"right"}]
    assert "knee_requests_per_s" not in seen[1]["right"]
    assert seen[2]["right"]["closed_requests_per_s"] > 0
    assert seen[2]["right"]["knee_requests_per_s"] >= 0


@pytest.mark.long
def test_a_server_that_does_not_start_is_left_out(
    bundle_dir: pytest.TempPathFactory, capfd: pytest.CaptureFixture[str]
) -> None:
    nowhere = Served("polyrec, nowhere", "polyrec", "cuda:99", "torch")
    with ExitStack() as opened:
        assert start_all([nowhere], load_bundle(str(bundle_dir)), b"", opened) == {}
    assert "polyrec, nowhere is left out: the server ended" in capfd.readouterr().out
