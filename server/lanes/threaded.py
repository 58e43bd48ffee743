"""The threaded lane: a thread of the server executes, the event loop goes on.

For a device that works while the host waits. On a CPU the thread and the loop share the interpreter
lock, which changes hands every 5 ms at worst: docs/lanes.md has what that costs.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from queue import SimpleQueue

from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.schema.batch import Batch
from polyrec.planner.plan import LaneKind
from polyrec.server.lanes.lane import Executed, Settle, attempt

CLOSE_S = 5.0
"""A thread cannot be ended; one that is stuck in its batch is left behind after this, as a daemon."""

Work = tuple[Runtime, Batch, Settle, asyncio.AbstractEventLoop]


class ThreadedLane:
    """cores: the thread runs on these only; empty for any."""

    kind: LaneKind = "thread"
    pid: None = None

    def __init__(self, name: str, runtimes: Mapping[str, Runtime], cores: tuple[int, ...] = ()) -> None:
        self.name = name
        self.alive = True
        self._runtimes = runtimes
        self._cores = cores
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"lane {name}", daemon=True)
        self._thread.start()

    def attach(self) -> None:
        return

    def execute(self, path: str, batch: Batch, settle: Settle) -> None:
        self._work.put((self._runtimes[path], batch, settle, asyncio.get_running_loop()))

    async def restart(self) -> None:
        return

    def close(self) -> None:
        self.alive = False
        self._work.put(None)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        import torch

        torch.set_num_threads(1)  # torch counts them a thread
        if self._cores:
            os.sched_setaffinity(0, self._cores)  # of this thread
        while (work := self._work.get()) is not None:
            runtime, batch, settle, loop = work
            outcome = attempt(runtime, batch)
            with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits for this
                loop.call_soon_threadsafe(self._settle, settle, outcome)
            del work, batch, settle, outcome  # or the last batch is held until the next

    def _settle(self, settle: Settle, outcome: Executed | Exception) -> None:
        if self.alive:
            settle(outcome)
