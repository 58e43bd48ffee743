"""Starts servers and workers of lanes by forking a process that has imported them, with less CPU time.

For tests that are not about such a start itself. What is forked goes on as `python -m` would, with an
environment, a folder, a standard output and a standard error of its own.
"""

from __future__ import annotations

import fcntl
import functools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from typing import Any, TextIO

from polyrec.server.child import ServerProcess, announced, environ_of

MODULES = ["polyrec.server.app.run", "polyrec.server.lanes.task", "polyrec.models.runtimes.kinds.onnx"]
TURN = threading.Lock()
"""Held by a thread that starts a process or reads an exit status, which multiprocessing does for one only."""


@functools.cache
def forks() -> ForkServerContext:
    """The process that forks. Its imports start no thread that what it forks would miss."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = get_context("forkserver")
    context.set_forkserver_preload(MODULES)
    return context


class Forked:
    """A forked process, with the part of subprocess.Popen that is used.

    given: descriptors that it has by the same numbers.
    """

    def __init__(
        self,
        run: Callable[[], None],
        given: Sequence[int],
        environ: Mapping[str, str],
        output: int,
        error: int,
        own_group: bool = False,
    ) -> None:
        with ExitStack() as opened:
            # multiprocessing hands on descriptors that are connections
            fds = [opened.enter_context(Connection(os.dup(fd))) for fd in (output, error, *given)]
            arguments = (run, dict(environ), os.getcwd(), own_group, (1, 2, *given), *fds)
            with TURN:
                self._process = forks().Process(target=_go_on, args=arguments, daemon=True)
                self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.stdout: TextIO | None = None

    def poll(self) -> int | None:
        with TURN:
            return self._process.exitcode

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def wait(self, timeout: float | None = None) -> int:
        wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(settings: Mapping[str, object], stderr: int | TextIO | None = None) -> ServerProcess:
    """Starts a server as polyrec.server.child.start does."""
    with ExitStack() as opened:
        if stderr == subprocess.DEVNULL:
            stderr = opened.enter_context(open(os.devnull, "w"))
        error = 2 if stderr is None else stderr if isinstance(stderr, int) else stderr.fileno()
        own_end, child_end = os.pipe()
        opened.callback(os.close, child_end)
        forked: Any = Forked(_serve, (), environ_of(settings), child_end, error)
        forked.stdout = os.fdopen(own_end)
    return announced(forked, None)


def worker(command: Sequence[str], pass_fds: Sequence[int], env: Mapping[str, str], **_: object) -> Forked:
    """Starts a lane's worker in place of the Popen of polyrec/server/lanes/child.py."""
    *_before, module, name, mailbox, wake, done, lifeline, spare = command
    assert module == "polyrec.server.lanes.worker"
    numbers = map(int, (mailbox, wake, done, lifeline, spare))
    with open(os.devnull, "w") as output:
        run = functools.partial(_work, name, *numbers)
        return Forked(run, tuple(pass_fds), env, output.fileno(), 2, own_group=True)


def _go_on(
    run: Callable[[], None],
    environ: dict[str, str],
    folder: str,
    own_group: bool,
    numbers: tuple[int, ...],
    *given: Connection,
) -> None:
    """Runs in the forked process."""
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    if own_group:
        os.setpgid(0, 0)
    # out of the way of the numbers, some of which multiprocessing's own descriptors have, used no more
    held = [fcntl.fcntl(connection.fileno(), fcntl.F_DUPFD_CLOEXEC, 512) for connection in given]
    for connection in given:
        connection.close()
    for fd, number in zip(held, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)
    run()


def _serve() -> None:
    from polyrec.server.__main__ import main

    sys.exit(main())


def _work(name: str, mailbox: int, wake: int, done: int, lifeline: int, spare: int) -> None:
    from polyrec.server.lanes.worker import main

    main(name, mailbox, wake, done, lifeline, spare)
