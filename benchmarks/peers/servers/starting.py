"""Starts the compared servers, each pinned to one core, and creates the environment of the peers.

A server is named NAME[:OPTION...]:

    polyrec[:PRECISION]     fp32, bf16 or int8
    fastapi[:PRECISION]     plain FastAPI, an ONNX Runtime session (fp32 or int8)
    mosec[:PRECISION]       mosec without batching
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.command import ROOT, free_port
from polyrec.loadtest.traffic.request_bodies import INFER
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.errors import PolyrecError
from polyrec.server.child import start

PACKAGES = ("fastapi", "numpy", "onnxruntime-gpu", "orjson", "uvicorn[standard]", "mosec")
"""Packages of the peers' environment; in Polyrec's versions if Polyrec uses them too."""
KINDS = ("polyrec", "fastapi", "mosec")
PRECISIONS = ("fp32", "bf16", "int8")
LARGE_REQUESTS = {"max_request_rows": 2**13, "max_queued_rows": 2**17}
"""Limits of Polyrec, since 2,048 rows of JSON exceed the default limit of values, and 16 connections of rows.
"""
START_S = 120.0
STOP_S = 15.0


class PeerFailed(PolyrecError):
    """Raised if a server does not start or an environment cannot be created."""


@dataclass(frozen=True, slots=True)
class ServerName:
    """A server and its precision, as given on the command line. binary: tensors instead of JSON."""

    name: str
    kind: str
    precision: str = "fp32"
    binary: bool = False

    @staticmethod
    def parse(name: str) -> ServerName:
        """Parses a name. Raises PeerFailed for an unknown server or precision."""
        kind, colon, precision = name.partition(":")
        if kind not in KINDS or (colon and precision not in PRECISIONS):
            raise PeerFailed(f"unknown server '{name}'")
        return ServerName(name, kind, precision) if colon else ServerName(name, kind)


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A running server at `url`; a peer has its own process group."""

    name: ServerName
    url: str
    process: subprocess.Popen[str] | subprocess.Popen[bytes]

    def stop(self) -> None:
        """Sends SIGTERM to its process, and SIGKILL to its whole group after STOP_S seconds."""
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        # servers of several processes leave some behind
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def make_environment(folder: Path) -> Path:
    """Returns the Python of the peers' environment; creates it if needed. Raises PeerFailed."""
    own, done = folder / "bin" / "python", folder / "complete"
    if not done.exists():
        install = [str(own), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), *PACKAGES]
        for command in ([sys.executable, "-m", "venv", "--clear", str(folder)], install):
            if subprocess.run(command, check=False).returncode:
                raise PeerFailed(f"the peers' environment was not made: {' '.join(command)}")
        done.touch()
    return own


def start_server(name: ServerName, bundle: Bundle, files: Path, core: int, probe: bytes) -> RunningServer:
    """Starts a server pinned to `core` and waits until it answers. Raises PeerFailed.

    files: the model for peers; their environments and logs are next to it. probe: a request in JSON.
    """
    if name.kind == "polyrec":
        settings: dict[str, object] = {"bundle": bundle.path, "precision": name.precision}
        own = start(settings | {"drain_grace_s": 0, **LARGE_REQUESTS}, core=core)
        return RunningServer(name, own.url + INFER, own.process)
    python = make_environment(files.with_name("venv"))
    module = f"benchmarks.peers.servers.{name.kind}_server"
    port = free_port()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [str(python), "-m", module, str(files), str(port), name.precision]
    log = files.with_name(f"{name.name.replace(':', '-')}.log")
    process = _pinned(command, environment, core, log)
    running = RunningServer(name, f"http://127.0.0.1:{port}{INFER}", process)
    try:
        wait_until_it_answers(running, probe)
    except PeerFailed:
        running.stop()
        raise
    return running


def _pinned(
    command: list[str], environment: Mapping[str, str], core: int, log: Path
) -> subprocess.Popen[bytes]:
    """Starts a process on one core, in its own group but in this session, whose priority it shares."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})  # of this thread, which a child inherits
    try:
        with log.open("wb") as file:
            return subprocess.Popen(
                command,
                cwd=ROOT,
                env=dict(environment),
                stdout=subprocess.DEVNULL,
                stderr=file,
                process_group=0,
            )
    finally:
        os.sched_setaffinity(0, cores)


def wait_until_it_answers(server: RunningServer, probe: bytes) -> None:
    """Polls until the probe is answered with status 200."""
    ends = time.monotonic() + START_S
    while time.monotonic() < ends:
        if server.process.poll() is not None:
            raise PeerFailed(
                f"'{server.name.name}' ended with status {server.process.returncode}; see its log"
            )
        request = urllib.request.Request(server.url, probe, {"Content-Type": "application/json"})
        with suppress(OSError):  # HTTPError is one
            urllib.request.urlopen(request, timeout=5).close()
            return
        time.sleep(0.1)
    raise PeerFailed(f"'{server.name.name}' did not answer within {START_S:g} s; see its log")
