"""Runs several server processes behind one port: `polyrec serve --processes 2`.

The supervising process binds the port, starts the children, forwards signals to them and restarts dead ones.
It serves nothing itself. Each child is a complete server (server/app/run.py). It accepts from the shared
port, and from a port of its own for requests that concern one process, such as metrics and administration
(server/http/shared_port.py). There the supervisor also asks it regularly whether it answers: probes of the
shared port are answered by the others.

All children inherit one listening socket, so connections in its accept queue survive the death of a child;
only the connections it had accepted are reset. A child begins to accept when it is ready. Embedding rows are
mapped from the bundle's files, so all children share one copy of them; tiers are not shared.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import orjson

from polyrec.models.errors import PolyrecError
from polyrec.server.app.background import start_task
from polyrec.server.app.listening import Ready, address_of, announce, listen, reserve, url_of
from polyrec.server.app.logs import log_to_stderr
from polyrec.server.app.settings.environment import PREFIX, variables_of
from polyrec.server.app.settings.settings import Settings
from polyrec.server.app.signals import accept_sighup, ignores_sighup
from polyrec.server.child import exit_description
from polyrec.server.clock import clock
from polyrec.server.grpc.opening import require_packages
from polyrec.server.record_pipe import CLOSE_S

log = logging.getLogger("polyrec.server")

ROOT = Path(__file__).parents[3]
FIRST_DELAY_S, MAX_DELAY_S = 0.1, 10.0
"""Delay before a dead process is restarted, and its maximum; doubles with each death before ready."""
WATCH_S = 2.0
"""Time between two checks of a process."""
SILENT_S = 5.0
"""Time without an answer after which a process is reported. Budgets are far shorter."""
END_S = CLOSE_S + 8.0
"""Time, beyond that of the drain, in which processes may end; most of it is for their prediction logs."""
LIVEZ = b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class ProcessFailed(PolyrecError):
    """A server process ended before it was first ready; its own log says why."""


def supervise(settings: Settings, on_ready: Callable[[Ready], object]) -> int:
    """Serves with `settings.processes` processes until a signal ends them; returns the exit status.

    Raises PortInUse, or ProcessFailed if one of them cannot start.
    """
    log_to_stderr(settings.log_level, log_format=settings.log_format)
    with ExitStack() as opened:
        shared = opened.enter_context(listen(settings.host, settings.port))
        first = 0 if settings.port == 0 else settings.port + 1
        own_sockets = [
            opened.enter_context(listen(settings.host, first and first + i))
            for i in range(settings.processes)
        ]
        grpc = None
        if settings.grpc_port is not None:
            require_packages()
            # held until the end, so that nobody takes the port while a process restarts
            grpc = opened.enter_context(reserve(settings.host, settings.grpc_port))
        return asyncio.run(_Supervisor(settings, shared, own_sockets, grpc, on_ready).run())


class _Supervisor:
    """The processes of one port. own: one listening socket per process. grpc: the reserved gRPC socket."""

    def __init__(
        self,
        settings: Settings,
        shared: socket.socket,
        own: Sequence[socket.socket],
        grpc: socket.socket | None,
        on_ready: Callable[[Ready], object],
    ) -> None:
        self._settings = settings
        self._rereads = settings.tokens is not None or settings.tls_cert is not None
        self._shared, self._own, self._grpc = shared, own, grpc
        self._on_ready = on_ready
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._ready: dict[int, dict[str, Any]] = {}
        self._serving: set[int] = set()
        """Processes that are ready. Others get no SIGHUP yet, which ends a process that has no handler."""
        self._rereads_later: set[int] = set()
        self._announced = False
        self._reason = ""
        self._stopping = False

    async def run(self) -> int:
        """Runs all processes to their end and returns the highest exit status."""
        loop = asyncio.get_running_loop()
        for number in FORWARDED:
            # children inherit ignored signals
            if number != signal.SIGHUP or self._rereads or not ignores_sighup():
                loop.add_signal_handler(number, self._signaled, number)
        accept_sighup()
        running = [asyncio.create_task(self._run_process(i)) for i in range(len(self._own))]
        try:
            return max(await asyncio.gather(*running))
        except BaseException:
            self._signaled(signal.SIGTERM)
            await asyncio.gather(*running, return_exceptions=True)
            raise

    def _signaled(self, number: int) -> None:
        """Forwards a signal. All processes then end, except on a SIGHUP that makes them reload files."""
        stops = number != signal.SIGHUP or not self._rereads
        if stops and not self._stopping:
            self._stopping = True
            start_task(self._kill_late(), "the end of server processes")
        for i, process in self._processes.items():
            if stops or i in self._serving:
                with suppress(ProcessLookupError):
                    process.send_signal(number)
            else:
                self._rereads_later.add(i)

    async def _kill_late(self) -> None:
        """Kills processes that have not ended some time after a stop signal, as one that hangs never does."""
        await asyncio.sleep(self._settings.drain_grace_s + self._settings.drain_timeout_s + END_S)
        for process in self._processes.values():
            log.error("server process %d did not end; it is killed", process.pid)
            process.kill()

    async def _run_process(self, i: int) -> int:
        """Runs one process and restarts it whenever it dies; returns its exit status after a stop signal."""
        delay_s = FIRST_DELAY_S
        while True:
            try:
                process, lifeline = await self._start(i)
            except (OSError, RuntimeError) as e:  # out of descriptors, processes or threads
                if not self._announced:
                    raise ProcessFailed(f"a server process cannot be started: {e}") from None
                log.error("a server process cannot be started, and is tried again: %s", e)
            else:
                status, was_ready = await self._follow(i, process, lifeline)
                if self._stopping:
                    return max(status, 0)
                if not self._announced:
                    how = f"{exit_description(status)} before it was ready{self._reason}"
                    raise ProcessFailed(f"a server process {how}")
                if was_ready:
                    delay_s = FIRST_DELAY_S
                log.error("server process %d %s; another one starts", process.pid, exit_description(status))
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, MAX_DELAY_S)
            if self._stopping:
                return 0

    async def _follow(self, i: int, process: asyncio.subprocess.Process, lifeline: int) -> tuple[int, bool]:
        """Follows a process to its end; returns (its exit status, whether it was ready)."""
        watching: list[asyncio.Task[None]] = []
        try:
            if self._stopping:  # the signal came while this process started
                process.terminate()
            assert process.stdout is not None
            while line := await process.stdout.readline():
                said = orjson.loads(line)
                if "error" in said:
                    self._reason = f": {said['error']}"
                    continue
                self._note_ready(i, said)
                self._serving.add(i)
                if i in self._rereads_later:  # as it may have read the files before the signal
                    process.send_signal(signal.SIGHUP)
                watching.append(start_task(self._watch(i, process), "watching a server process"))
            status = await process.wait()
            del self._processes[i]
            self._serving.discard(i)
            self._rereads_later.discard(i)
        finally:
            os.close(lifeline)
            for task in watching:
                task.cancel()
        return status, bool(watching)

    async def _start(self, i: int) -> tuple[asyncio.subprocess.Process, int]:
        """Starts a process; returns it and the pipe that ends it when closed.

        Raises OSError or RuntimeError.
        """
        # the kernel kills the child when this end of the pipe closes, also if this process crashes
        child_end, own_end = os.pipe()
        descriptors = (self._shared.fileno(), self._own[i].fileno(), child_end)
        try:
            process = self._processes[i] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "polyrec.server", *map(str, descriptors)),
                pass_fds=descriptors,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                env=_environment(self._settings, self._grpc),
                process_group=0,  # Ctrl-C reaches only the supervisor, which forwards it
            )
        except BaseException:
            os.close(own_end)
            raise
        finally:
            os.close(child_end)
        return process, own_end

    async def _watch(self, i: int, process: asyncio.subprocess.Process) -> None:
        """Logs when a process stops answering and when it answers again."""
        own = self._own[i]
        silent_since_s: float | None = None
        while True:
            await asyncio.sleep(WATCH_S)
            if self._stopping:
                return
            asked_s = clock()
            answers = await _answers(own)
            if self._stopping:  # it may no longer accept connections
                return
            if answers and silent_since_s is not None:
                silent_for_s, silent_since_s = clock() - silent_since_s, None
                log.warning("server process %d answers again, after %.0f s", process.pid, silent_for_s)
            elif not answers and silent_since_s is None:
                silent_since_s = asked_s
                log.error(
                    "server process %d (%s) has not answered for %g s: its clients wait, and new gRPC ones "
                    "still reach it. After `kill -9 %d` another one starts",
                    *(process.pid, address_of(own), SILENT_S, process.pid),
                )

    def _note_ready(self, i: int, ready: dict[str, Any]) -> None:
        """Announces the port once every process has been ready once."""
        self._ready[i] = ready
        if self._announced or len(self._ready) < len(self._own):
            return
        self._announced = True
        first = self._ready[0]
        scheme = first["url"].partition(":")[0]
        whole = Ready(
            url=url_of(scheme, self._shared),
            pid=os.getpid(),
            paths=tuple(first["paths"]),
            runtime=first["runtime"],
            bundle_version=first["bundle_version"],
            processes=tuple(self._ready[j]["url"] for j in sorted(self._ready)),
            grpc=first["grpc"],
        )
        announce(whole, self._on_ready)


async def _answers(own: socket.socket) -> bool:
    """Whether the process that accepts from a listening socket answers in SILENT_S.

    A connection that it closes, as this is not TLS, is an answer too: its event loop runs.
    """
    loop = asyncio.get_running_loop()
    try:
        with socket.socket(own.family) as asking:
            asking.setblocking(False)
            async with asyncio.timeout(SILENT_S):
                await loop.sock_connect(asking, own.getsockname())
                await loop.sock_sendall(asking, LIVEZ)
                await loop.sock_recv(asking, 1)
    except TimeoutError:
        return False
    except OSError:  # a reset, or no descriptor left here
        pass
    return True


def _environment(settings: Settings, grpc: socket.socket | None) -> dict[str, str]:
    """Returns a child's environment, with the settings as variables and this code on the import path."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(PREFIX)}
    search = (str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")]))
    own = {"PYTHONPATH": os.pathsep.join(search), f"{PREFIX}PROCESSES": "1"}
    if grpc is not None:
        own[f"{PREFIX}GRPC_PORT"] = str(grpc.getsockname()[1])
    return kept | variables_of(settings) | own
