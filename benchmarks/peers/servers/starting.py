"""Starts the compared servers, each pinned to one core, and creates the environment of the peers.

A server is named NAME[:OPTION...]:

    polyrec[:PRECISION][:RUNTIME][:binary][:exploded]
                                             PRECISION: fp32, bf16, int8; RUNTIME: auto, onnx, torch, ...
    fastapi[:PRECISION]                      plain FastAPI, an ONNX Runtime session (fp32 or int8)
    mosec[:PRECISION]                        mosec without batching
    mosec-batch[:PRECISION]                  mosec, batches of at most 16 requests
    triton[:PRECISION]                       Triton, dynamic batching

`binary` sends and reads binary tensors instead of JSON; `exploded` repeats the context in each row, as for
peers.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.errors import PolyrecError
from polyrec.server.child import start

ROOT = Path(__file__).parents[3]
PACKAGES = ("fastapi", "numpy", "onnxruntime-gpu", "orjson", "uvicorn[standard]", "mosec")
"""Packages of the peers' environment; in Polyrec's versions if Polyrec uses them too."""
TRITON_PYTHON = "/usr/bin/python3"
"""Triton's backend is linked with the distribution's Python and only reads arrays of numpy 1."""
TRITON_PACKAGES = ("numpy<2", "onnxruntime-gpu", "orjson")
PRECISIONS = ("fp32", "bf16", "int8")
BATCHING = {"PEER_BATCH": "16", "PEER_WAIT_MS": "1"}
LARGE_REQUESTS = {"max_request_rows": 2**13, "max_queued_rows": 2**17}
"""Limits of Polyrec, since 2,048 rows of JSON exceed the default limit of values, and 16 connections of rows.
"""
START_S = 120.0
STOP_S = 15.0
INFER = "/v2/models/dlrm/infer"


class PeerFailed(PolyrecError):
    """Raised if a server does not start or an environment cannot be created."""


@dataclass(frozen=True, slots=True)
class ServerName:
    """A server and its options, as given on the command line."""

    name: str
    kind: str
    precision: str = "fp32"
    runtime: str = "auto"
    binary: bool = False
    exploded: bool = False

    @staticmethod
    def parse(name: str) -> ServerName:
        """Parses a name. Raises PeerFailed for an unknown server or option."""
        kind, *options = name.split(":")
        if kind not in ("polyrec", "fastapi", "mosec", "mosec-batch", "triton"):
            raise PeerFailed(f"unknown server '{name}'")
        precision = next((o for o in options if o in PRECISIONS), "fp32")
        forms = {"binary", "exploded"}.intersection(options)
        others = [o for o in options if o not in PRECISIONS and o not in forms]
        if len(others) > (kind == "polyrec") or (forms and kind != "polyrec"):
            raise PeerFailed(f"server '{name}' has an option that it does not take")
        return ServerName(name, kind, precision, *others, **dict.fromkeys(forms, True))

    @property
    def is_polyrec(self) -> bool:
        return self.kind == "polyrec"


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
    """Returns the Python of the environment of all peers except Triton; creates it if needed.

    Raises PeerFailed.
    """
    constraints = ("-c", str(ROOT / "constraints.txt"))
    return _environment(folder, sys.executable, [[*constraints, *PACKAGES]])


def make_triton_environment(folder: Path) -> Path:
    """Returns the Python of Triton's environment; creates it if needed. Raises PeerFailed."""
    # pytriton's own dependencies are not used: only the server inside its wheel is
    return _environment(folder, TRITON_PYTHON, [["--no-deps", "nvidia-pytriton"], [*TRITON_PACKAGES]])


def _environment(folder: Path, python: str, installed: list[list[str]]) -> Path:
    own = folder / "bin" / "python"
    done = folder / "complete"
    if not done.exists():
        install = [str(own), "-m", "pip", "install", "-q"]
        for command in ([python, "-m", "venv", "--clear", str(folder)], *(install + i for i in installed)):
            if subprocess.run(command, check=False).returncode:
                raise PeerFailed(f"the peers' environment was not made: {' '.join(command)}")
        done.touch()
    return own


def start_server(name: ServerName, bundle: Bundle, files: Path, core: int, probe: bytes) -> RunningServer:
    """Starts a server pinned to `core` and waits until it answers. Raises PeerFailed.

    files: the model for peers; their environments and logs are next to it. probe: a request in JSON.
    """
    if name.is_polyrec:
        settings: dict[str, object] = {"bundle": bundle.path, "precision": name.precision}
        settings |= {"runtime": name.runtime, "drain_grace_s": 0, **LARGE_REQUESTS}
        if bundle.width is not None:
            settings["width"] = bundle.width
        own = start(settings, core=core)
        return RunningServer(name, own.url + INFER, own.process)
    python = (
        make_triton_environment(files.with_name("triton-venv"))
        if name.kind == "triton"
        else make_environment(files.with_name("venv"))
    )
    module = f"benchmarks.peers.servers.{name.kind.partition('-')[0]}_server"
    port = free_port()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment |= BATCHING if name.kind == "mosec-batch" else {}
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


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


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
