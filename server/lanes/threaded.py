"""The threaded lane, which executes batches in a thread beside the event loop.

Use it for a device that works while the host waits. On a CPU the thread and the event loop compete for the
GIL, which Python may switch only every 5 ms (docs/lanes.md).
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
from polyrec.server.lanes.lane import Executed, Settle, execute_batch

CLOSE_S = 5.0
"""Maximum wait for the thread to end; a thread stuck in a batch remains as a daemon."""

Work = tuple[Runtime, Batch, Settle, asyncio.AbstractEventLoop]


class ThreadedLane:
    """A lane in a thread. cores: CPU cores that it may run on, empty for any."""

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

        torch.set_num_threads(1)  # a per-thread setting
        if self._cores:
            os.sched_setaffinity(0, self._cores)  # for this thread only
        while (work := self._work.get()) is not None:
            runtime, batch, settle, loop = work
            outcome = execute_batch(runtime, batch)
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._settle, settle, outcome)
            del work, batch, settle, outcome  # free the batch before waiting for the next one

    def _settle(self, settle: Settle, outcome: Executed | Exception) -> None:
        if self.alive:
            settle(outcome)
