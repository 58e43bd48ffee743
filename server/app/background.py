"""Runs background tasks, and blocking work in a pool of daemon threads.

Shutdown waits for neither. Idle threads are kept for reuse: `Thread.start` blocks the event loop until the
new thread has acquired the GIL, which takes milliseconds while a lane computes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

from polyrec.server.failure_log import FailureLog

log = logging.getLogger("polyrec.server")

T = TypeVar("T")

IDLE_S = 60.0
"""Time after which an idle thread ends."""


class Threads:
    """A pool of daemon threads, started on demand and reused. Thread-safe."""

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        # counts the idle threads that no caller has claimed
        self._idle = threading.Semaphore(0)

    def run(self, work: Callable[[], None]) -> None:
        """Runs `work` in an idle thread, or in a new one if there is none. `work` must not raise."""
        if self._idle.acquire(blocking=False):
            self._work.put(work)
        else:
            # in a list that `_run` empties, as a thread keeps its arguments until it ends
            threading.Thread(target=self._run, args=([work],), name="background", daemon=True).start()

    def _run(self, first: list[Callable[[], None]]) -> None:
        work = first.pop()
        while True:
            work()
            del work  # do not keep its objects alive while waiting
            self._idle.release()
            try:
                work = self._work.get(timeout=self._idle_s)
            except Empty:
                if self._idle.acquire(blocking=False):
                    return
                # a caller claimed an idle thread after the timeout, so an item is on its way
                work = self._work.get()


_threads = Threads()
_under_way: set[object] = set()
"""One token per call that runs in a thread, even if its future was canceled."""


def is_working() -> bool:
    """Whether any work runs in a thread.

    Interpreter shutdown would crash a thread that is opening a model.
    """
    return bool(_under_way)


def run_in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Runs `work` in a thread, in the caller's context; the future gets its result or exception."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(cast(T, result))
        else:
            done.set_exception(error)

    context = copy_context()
    work_under_way = object()
    _under_way.add(work_under_way)

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(work)
        except BaseException as e:
            error = e
        _under_way.discard(work_under_way)
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, result, error)

    _threads.run(run)
    return done


def start_task(work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
    """Starts a task that is not awaited, and logs an exception as soon as it ends the task.

    asyncio itself logs the exception only when the task is garbage-collected, which never happens while a
    reference is kept for canceling it.

    what: the task's name in the log.
    """

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s ended by an unexpected error", what, exc_info=error)

    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(ended)
    return task


def repeat(work: Callable[[], Awaitable[None]], every_s: float, what: str) -> asyncio.Task[None]:
    """Starts a task that calls `work` every `every_s` seconds; logs what fails, at most once a minute.

    what: the work's name in the log.
    """
    failures = FailureLog(log, f"{what} failed; it is tried again")

    async def run() -> None:
        while True:
            await asyncio.sleep(every_s)
            try:
                await work()
            except Exception:
                failures.exception()

    return start_task(run(), what)
