"""The worker: the process of a lane. Only server/lanes/child.py starts it.

What it shall open is read from the mailbox; then it executes the batches put there, one after another,
until the server ends. It knows nothing of requests, queues or deadlines.
"""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyrec.models.runtimes.runtime import Runtime
    from polyrec.server.lanes.mailbox import Mailbox

log = logging.getLogger("polyrec.lane")
clock = time.perf_counter


def main(name: str, mailbox_fd: int, wake: int, done: int, lifeline: int) -> None:
    die_with(lifeline)
    # The server drains when it is told to stop, and ends its workers after that.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    from polyrec.server.app.logs import log_to_stderr
    from polyrec.server.lanes.mailbox import Mailbox, State

    log_to_stderr("warning", f" {name}")

    mailbox = Mailbox(mailbox_fd)
    try:
        runtimes = _opened(mailbox.said()[1])
    except Exception as e:
        from polyrec.models.errors import PolyrecError

        if not isinstance(e, PolyrecError):
            log.exception("its paths cannot be opened")
        mailbox.say(State.UNAVAILABLE, f"{type(e).__name__}: {_one_line(e)}")
        os.eventfd_write(done, 1)
        return
    gc.collect()
    gc.freeze()
    mailbox.say(State.READY)
    os.eventfd_write(done, 1)
    _work(mailbox, runtimes, wake, done)


def die_with(lifeline: int) -> None:
    """The kernel kills this process as soon as the other end of the pipe is closed.

    Without a thread, and whatever this process is doing: the pipe's signal for input, which nobody
    writes, is made SIGKILL.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    poller = select.poll()
    poller.register(lifeline)
    if poller.poll(0):  # it was closed before the signal was asked for
        os.kill(os.getpid(), signal.SIGKILL)


def _opened(told: str) -> Sequence[Runtime]:
    from polyrec.server.lanes.task import Task

    task = Task.model_validate_json(told)
    if task.cores:
        os.sched_setaffinity(0, task.cores)

    import torch

    from polyrec.models.allocator import keep_memory

    torch.set_num_threads(1)
    runtimes = task.open()
    keep_memory()  # only from here on: what opening needed for a while is given back
    return runtimes


def _work(mailbox: Mailbox, runtimes: Sequence[Runtime], wake: int, done: int) -> None:
    from polyrec.server.lanes.mailbox import State

    while True:
        os.eventfd_read(wake)
        try:
            _execute(mailbox, runtimes, done)
        except Exception as e:
            log.exception("a batch failed")
            mailbox.say(State.FAILED, f"{type(e).__name__}: {_one_line(e)}")
            os.eventfd_write(done, 1)


def _execute(mailbox: Mailbox, runtimes: Sequence[Runtime], done: int) -> None:
    """One batch. What it made on the way is let go only after the server was told, which waits for that."""
    path, batch = mailbox.take()
    runtime = runtimes[path]
    start = clock()
    embedded = runtime.embed(batch)
    middle = clock()
    probabilities = runtime.dense(embedded)
    mailbox.answer(probabilities, middle - start, clock() - middle)
    os.eventfd_write(done, 1)


def _one_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
