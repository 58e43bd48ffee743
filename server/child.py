"""Starts a server in a child process, for demos, load tests, notebooks and tests.

This module imports neither torch nor the server; only the child does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

import orjson

from polyrec.models.errors import PolyrecError


class StartFailed(PolyrecError):
    """A child server ended before it was ready."""


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A server in a child process, ready to answer at `url`.

    processes, grpc: see `Ready`.
    lifeline: descriptor of a pipe that ends the server when this process ends for any reason, or None.
    """

    url: str
    process: subprocess.Popen[str]
    processes: tuple[str, ...] = ()
    grpc: str | None = None
    lifeline: int | None = None

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> int:
        """Sends SIGTERM, and SIGKILL after 30 s; returns the exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()
            if self.lifeline is not None:
                os.close(self.lifeline)


def start(
    settings: Mapping[str, object],
    stderr: int | TextIO | None = None,
    core: int | None = None,
    lifeline: bool = False,
    own_group: bool = False,
) -> ServerProcess:
    """Starts a server process with these settings (port 0 unless given) and waits until it is ready.

    core: the only CPU core it may use, None for any.
    lifeline: whether the server is killed when this process ends for any reason.
    own_group: whether to shield it from a terminal's Ctrl-C, so that only this process ends it.
    Raises StartFailed with the server's reason if it ends before it is ready.
    """
    child_end, own_end = os.pipe() if lifeline else (None, None)
    inherited = () if child_end is None else (child_end,)
    cores = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})  # for this thread; the child inherits it
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "polyrec.server", *map(str, inherited)],
            env=environ_of(settings),
            pass_fds=inherited,
            process_group=0 if own_group else None,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    finally:
        os.sched_setaffinity(0, cores)
        if child_end is not None:
            os.close(child_end)
    return announced(process, own_end)


def environ_of(settings: Mapping[str, object]) -> dict[str, str]:
    """This process's environment with these settings, and no others, as POLYREC_ variables."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("POLYREC_")}
    return environ | {f"POLYREC_{k.upper()}": str(v) for k, v in ({"port": 0} | dict(settings)).items()}


def announced(process: subprocess.Popen[str], lifeline: int | None) -> ServerProcess:
    """Waits until a server process is ready. Raises StartFailed with its reason if it ends before."""
    assert process.stdout is not None
    line = process.stdout.readline()
    # benchmarks start servers of older revisions, whose announcement has fewer keys
    ready = orjson.loads(line) if line else {}
    if "url" not in ready:
        process.stdout.close()
        how = f"the server {exit_description(process.wait())} before it was ready"
        if lifeline is not None:
            os.close(lifeline)  # not before it has ended by itself, as this kills it
        raise StartFailed(f"{how}: {ready['error']}" if ready else how)
    return ServerProcess(
        ready["url"], process, tuple(ready.get("processes", ())), ready.get("grpc"), lifeline
    )


def exit_description(status: int) -> str:
    """Describes how a process ended. status: as of `Popen.poll`."""
    return f"ended with status {status}" if status >= 0 else f"was killed by {signal.Signals(-status).name}"
