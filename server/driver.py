"""Where a lane's batches execute: in the event loop itself, or in a thread of the lane.

`inline` blocks the loop for the length of a batch and pays no hop between threads; on a CPU that is
the better of the two (docs/protocol.md has the figures). `thread` leaves the loop free while an
accelerator works.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Literal, Protocol

Kind = Literal["inline", "thread"]
Job = Callable[[], Any]
Settle = Callable[[Any], None]


class Driver(Protocol):
    """Executes one job at a time, then calls `settle` with its result, on the event loop."""

    def run(self, job: Job, settle: Settle) -> None: ...

    def close(self) -> None: ...


class Inline:
    """The event loop executes the job itself."""

    def run(self, job: Job, settle: Settle) -> None:
        settle(job())

    def close(self) -> None:
        return


class Threaded:
    """A thread of its own executes the job."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[tuple[Job, Settle, asyncio.AbstractEventLoop] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"lane {name}", daemon=True)
        self._thread.start()

    def run(self, job: Job, settle: Settle) -> None:
        self._jobs.put((job, settle, asyncio.get_running_loop()))

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (work := self._jobs.get()) is not None:
            job, settle, loop = work
            result = job()
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result)


def open_driver(kind: Kind, path: str) -> Driver:
    """The driver of the lane of `path`."""
    return Inline() if kind == "inline" else Threaded(path)
