"""Starts, wakes, watches and ends the worker process of a lane.

Five file descriptors connect the worker with the server. None has a name in a file system that could be left
behind after a crash:

    mailbox    shared memory (memfd)
    wake       eventfd: the server has put a batch
    done       eventfd: the worker has answered; watched by the event loop
    lifeline   pipe that nobody writes to. When the server ends for any reason, the kernel closes the server's
               end and kills the worker. (PR_SET_PDEATHSIG would fire when the *thread* that started the
               worker ends.)
    pidfd      readable once the worker has ended; watched by the event loop
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from subprocess import DEVNULL, Popen

from polyrec.models.errors import BundleError, PolyrecError, RuntimeUnavailable
from polyrec.server.lanes.mailbox import Mailbox, WorkerState

ROOT = Path(__file__).parents[3]
START_S = 300.0
"""Timeout for a worker to become ready; opening gigabytes from a cold disk takes a minute."""
END_S = 5.0
ERRORS: dict[str, type[PolyrecError]] = {e.__name__: e for e in (BundleError, RuntimeUnavailable)}


class Child:
    """A worker process. The constructor does not block; `wait_ready` waits until the worker takes batches."""

    def __init__(
        self, name: str, task: str, inherited: frozenset[int] = frozenset(), spare: bool = False
    ) -> None:
        """Starts the process. Raises RuntimeUnavailable.

        name: the lane's name, which ps shows.
        task: a `task.WorkerTask` as JSON.
        inherited: descriptors that the task needs.
        spare: whether the worker uses only spare CPU time once it is ready.
        """
        self.name = name
        self._spare = spare
        try:
            self._start(task, inherited)
        except OSError as e:
            raise RuntimeUnavailable(f"lane '{name}': its process cannot be started: {e}") from None

    def _start(self, task: str, inherited: frozenset[int]) -> None:
        with ExitStack() as opened:
            self.mailbox = Mailbox.create(self.name)
            opened.callback(self.mailbox.close)
            self.mailbox.put_message(WorkerState.STARTING, task)
            self.wake = _closed_by(opened, os.eventfd(0, os.EFD_CLOEXEC))
            self.done = _closed_by(opened, os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            child_end, own_end = os.pipe()
            _closed_by(opened, own_end)
            shared = (self.mailbox.fd, self.wake, self.done, child_end)
            numbers = map(str, (*shared, int(self._spare)))
            command = [sys.executable, "-P", "-m", "polyrec.server.lanes.worker", self.name, *numbers]
            try:
                self._process = Popen(
                    command,
                    pass_fds=(*shared, *inherited),
                    stdin=DEVNULL,
                    stdout=DEVNULL,  # a program may parse the server's standard output
                    env=_environment(),
                    process_group=0,  # Ctrl-C reaches only the server, which ends its workers
                )
            finally:
                os.close(child_end)
            self.pid = self._process.pid
            try:
                self.ended = _closed_by(opened, os.pidfd_open(self.pid))
            except OSError:
                self._process.kill()
                self._process.wait()
                raise
            self._opened = opened.pop_all()

    def wait_ready(self) -> None:
        """Blocks until the worker takes batches.

        Raises RuntimeUnavailable or BundleError if it ends instead.
        """
        poller = select.poll()
        poller.register(self.done, select.POLLIN)
        poller.register(self.ended, select.POLLIN)
        ready = {fd for fd, _ in poller.poll(START_S * 1e3)}
        if self.done in ready:
            os.eventfd_read(self.done)
            state, message = self.mailbox.message()
            if state is WorkerState.READY:
                return
            kind, _, message = message.partition(": ")
            self.end()
            raise ERRORS.get(kind, RuntimeUnavailable)(f"lane '{self.name}': {message}")
        how = self.exit_reason() if ready else f"was not ready after {START_S:g} s"
        self.end()
        raise RuntimeUnavailable(f"lane '{self.name}': its process {how} while it started")

    def exit_reason(self) -> str:
        """Returns how the process ended, such as `exited with status 1` or `was killed by SIGKILL`."""
        status = self._process.wait()
        if status >= 0:
            return f"exited with status {status}"
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"

    def has_answered(self) -> bool:
        """Whether the worker has signaled an answer since the last call."""
        try:
            return os.eventfd_read(self.done) > 0
        except BlockingIOError:
            return False

    def kill(self) -> None:
        """Sends SIGKILL; a worker has nothing to save."""
        self._process.kill()

    def end(self) -> None:
        """Kills the worker, closes all descriptors, and waits up to END_S for the worker to end.

        Does not wait for a worker that uses only spare CPU time, as it needs such time even to exit: on a
        busy machine that took seconds, during which the event loop answered nothing.
        """
        self._process.kill()
        poller = select.poll()
        poller.register(self.ended, select.POLLIN)
        if poller.poll(0 if self._spare else END_S * 1e3):
            self._process.wait()
        else:
            name = f"polyrec-reap-{self.pid}"
            threading.Thread(target=self._process.wait, name=name, daemon=True).start()
        self._opened.close()


def _closed_by(opened: ExitStack, fd: int) -> int:
    opened.callback(os.close, fd)
    return fd


def _environment() -> dict[str, str]:
    """Returns the server's environment, with single-threaded libraries and this code on the import path."""
    search: Sequence[str] = (str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")]))
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(search),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
    }
