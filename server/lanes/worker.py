"""The worker process of a process lane; server/lanes/child.py starts it.

It reads its task from the mailbox, opens the task's paths, and then executes the batches that the server puts
there, one after another, until the server ends.
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

from polyrec.models.slow_imports import slow_imports
from polyrec.server.app.signals import ignore_signals_of_service
from polyrec.server.priority import ThreadWaits, lower_priority, take_spare_time

if TYPE_CHECKING:
    from polyrec.models.runtimes.runtime import Runtime
    from polyrec.models.tiers.shared.slab_reader import SlabReader
    from polyrec.server.lanes.mailbox import Mailbox

    OpenPaths = Sequence[tuple[Runtime, SlabReader | None]]

log = logging.getLogger("polyrec.lane")
clock = time.perf_counter


def main(name: str, mailbox_fd: int, wake: int, done: int, lifeline: int, spare: int) -> None:
    """Runs the worker until the server ends.

    mailbox_fd: the shared memory. wake, done: eventfds, a batch is in the mailbox, its result is.
    lifeline: a pipe that closes when the server ends. spare: whether to use only spare CPU time.
    """
    die_with(lifeline)
    if spare:
        lower_priority()
    # the server drains first, and then ends its workers
    ignore_signals_of_service()
    from polyrec.server.app.logs import log_to_stderr
    from polyrec.server.lanes.mailbox import Mailbox, WorkerState

    log_to_stderr("warning", f" {name}")

    mailbox = Mailbox(mailbox_fd)
    try:
        paths = _open_paths(mailbox.message()[1])
    except Exception as e:
        from polyrec.models.errors import PolyrecError

        if not isinstance(e, PolyrecError):
            log.exception("its paths cannot be opened")
        mailbox.put_message(WorkerState.UNAVAILABLE, f"{type(e).__name__}: {_one_line(e)}")
        os.eventfd_write(done, 1)
        return
    gc.collect()
    gc.freeze()
    if spare:
        take_spare_time()
    mailbox.put_message(WorkerState.READY)
    os.eventfd_write(done, 1)
    _work(mailbox, paths, wake, done, ThreadWaits() if spare else None)


def die_with(lifeline: int) -> None:
    """Makes the kernel kill this process as soon as the other end of a pipe is closed.

    The pipe's input signal (F_SETSIG) is set to SIGKILL, and only a hang-up triggers it, as nobody writes to
    the pipe. This needs no thread and works whatever the process is doing.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    poller = select.poll()
    poller.register(lifeline)
    if poller.poll(0):  # closed before the signal was set
        os.kill(os.getpid(), signal.SIGKILL)


def _open_paths(task_json: str) -> OpenPaths:
    with slow_imports():
        from polyrec.server.lanes.task import WorkerTask

    task = WorkerTask.model_validate_json(task_json)
    if task.cores:
        os.sched_setaffinity(0, task.cores)

    with slow_imports():
        import torch

        from polyrec.models.allocator import retain_freed_memory
        from polyrec.models.tiers.stage import slab_reader

    torch.set_num_threads(1)
    paths = [(runtime, slab_reader(runtime.stage)) for runtime in task.open()]
    retain_freed_memory()  # not earlier, so that memory used only for opening is returned
    return paths


def _work(mailbox: Mailbox, paths: OpenPaths, wake: int, done: int, waits: ThreadWaits | None) -> None:
    from polyrec.server.lanes.mailbox import WorkerState

    while True:
        os.eventfd_read(wake)
        try:
            _execute(mailbox, paths, done, waits)
        except Exception as e:
            log.exception("a batch failed")
            mailbox.put_message(WorkerState.FAILED, f"{type(e).__name__}: {_one_line(e)}")
            os.eventfd_write(done, 1)


def _execute(mailbox: Mailbox, paths: OpenPaths, done: int, waits: ThreadWaits | None) -> None:
    """Executes one batch. Intermediate arrays are freed only after the waiting server was signaled."""
    path, batch, resolved = mailbox.take()
    runtime, reader = paths[path]
    start = clock()
    if reader is not None and resolved is not None:
        reader.begin(resolved)
    embedded = runtime.embed(batch)
    middle = clock()
    probabilities = runtime.dense(embedded)
    # waits since the last answer; between batches the worker only frees arrays, so nearly all are this
    # batch's
    waited_s = 0.0 if waits is None else waits.since_last_s()
    mailbox.answer(probabilities, middle - start, clock() - middle, waited_s)
    os.eventfd_write(done, 1)


def _one_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
