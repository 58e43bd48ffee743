"""Runs tasks, and blocking work in daemon threads; a server that is stopped waits for neither.

A thread that has nothing to do waits for more work: starting one blocks the event loop until the new thread
has had its turn of the interpreter, which takes milliseconds while a lane computes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

log = logging.getLogger("polyrec.server")

T = TypeVar("T")

IDLE_S = 60.0
"""Time after which an idle thread ends."""


class Threads:
    """Daemon threads that are started as needed and used again. Thread-safe."""

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        # threads that wait for work that no caller has claimed yet
        self._idle = threading.Semaphore(0)

    def run(self, work: Callable[[], None]) -> None:
        """Runs work, which must not raise, in an idle thread or else in a new one."""
        if self._idle.acquire(blocking=False):
            self._work.put(work)
        else:
            threading.Thread(target=self._run, args=(work,), name="background", daemon=True).start()

    def _run(self, work: Callable[[], None]) -> None:
        while True:
            work()
            del work  # or what it refers to would stay in memory while this waits
            self._idle.release()
            try:
                work = self._work.get(timeout=self._idle_s)
            except Empty:
                if self._idle.acquire(blocking=False):
                    return
                # in between, a caller has claimed this thread, or another one whose work this one takes
                work = self._work.get()


_threads = Threads()
_under_way: set[object] = set()
"""One object for each work that runs in a thread, also if nothing waits for it any more."""


def is_working() -> bool:
    """Whether work runs in a thread. The interpreter's shutdown would crash in one that opens a model."""
    return bool(_under_way)


def run_in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Runs `work` in a thread; the future gets its result or exception."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(cast(T, result))
        else:
            done.set_exception(error)

    work_under_way = object()
    _under_way.add(work_under_way)

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as e:
            error = e
        _under_way.discard(work_under_way)
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, result, error)

    _threads.run(run)
    return done


def start_task(work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
    """Starts a task that nothing awaits; an exception that ends it is logged at once. what: its name there.

    asyncio logs one only when the task is forgotten, which a task that is kept to be canceled never is.
    """

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s ended by an unexpected error", what, exc_info=error)

    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(ended)
    return task
