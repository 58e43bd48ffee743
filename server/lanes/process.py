"""The process lane, which executes batches in a worker process (server/lanes/worker.py).

The event loop writes a batch to shared memory and wakes the worker, which signals completion through a file
descriptor. If the worker dies, only this lane is affected: its batch is settled with LaneDied, and `restart`
starts another worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence

from polyrec.models.bundle.held_files import HeldFiles
from polyrec.models.errors import RuntimeUnavailable
from polyrec.models.memory import require_memory
from polyrec.models.schema.batch import Batch
from polyrec.planner.plan import LaneKind
from polyrec.server.lanes.child import Child
from polyrec.server.lanes.lane import Executed, LaneDied, OnDeath, Settle
from polyrec.server.lanes.resolving import PathRows, Resolution, Resolver
from polyrec.server.lanes.task import WorkerTask

log = logging.getLogger("polyrec.lanes")
WORKER_BYTES = 2**27
"""Lower bound of the memory that a worker process shares with no other: libraries take 170 to 190 MiB."""
NO_TIERS: Mapping[str, PathRows] = {}


class ProcessLane:
    """A lane in its own process.

    The constructor blocks until the worker is ready. It raises RuntimeUnavailable or BundleError.
    """

    kind: LaneKind = "process"

    def __init__(
        self,
        name: str,
        task: WorkerTask,
        on_death: OnDeath,
        files: Sequence[HeldFiles] = (),
        tiered: Mapping[str, PathRows] = NO_TIERS,
    ) -> None:
        """Starts a worker and waits for it.

        files: the files of the task's bundles, held open so that the worker can be restarted.
        tiered: the rows of the paths that are in tiers.
        """
        self.name = name
        self._task, self._spare = task.model_dump_json(), task.spare
        self._inherited = task.descriptors
        self._files = tuple(files)
        self._number = {path.name: i for i, path in enumerate(task.paths)}
        self._on_death = on_death
        self._tiered = dict(tiered)
        self._resolver = Resolver(name)
        self._settle: Settle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._starting: Child | None = None
        self._closed = False
        self._child: Child | None = self._start()

    @property
    def alive(self) -> bool:
        return self._child is not None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def attach(self) -> None:
        loop = asyncio.get_running_loop()
        if self._child is None or loop is self._loop:
            return
        loop.add_reader(self._child.done, self._answered)
        loop.add_reader(self._child.ended, self._died)
        self._loop = loop

    def execute(self, path: str, batch: Batch, settle: Settle) -> None:
        child = self._child
        if child is None:
            error = LaneDied(f"lane '{self.name}' has no process")
            asyncio.get_running_loop().call_soon(settle, error)
            return
        self.attach()
        self._settle = settle
        rows = self._tiered.get(path)
        if rows is None:
            self._send(child, path, batch, None)
        else:
            self._resolver.begin(rows, batch, lambda outcome: self._send(child, path, batch, outcome))

    def _send(self, child: Child, path: str, batch: Batch, resolved: Resolution | None) -> None:
        """Sends a batch to the worker. Settles it at once if resolving its rows failed."""
        if child is not self._child:
            return
        try:
            if isinstance(resolved, Exception):
                raise resolved
            child.mailbox.put(self._number[path], batch, resolved)
        except Exception as e:
            asyncio.get_running_loop().call_soon(self._settled, e)
            return
        os.eventfd_write(child.wake, 1)

    async def restart(self) -> None:
        if self._restarting is None:
            self._restarting = asyncio.create_task(self._restart())
        await asyncio.shield(self._restarting)

    def close(self) -> None:
        self._closed = True
        if self._starting is not None:
            self._starting.kill()  # the thread that waits for this worker cleans up
        self._end()
        self._resolver.close()

    def _start(self) -> Child:
        self._starting = child = Child(self.name, self._task, self._inherited, self._spare)
        try:
            if self._closed:
                child.kill()
            child.wait_ready()
        finally:
            self._starting = None
        return child

    def _start_again(self) -> Child:
        # otherwise the kernel, which may have killed the worker for its memory, could now kill the server
        require_memory(WORKER_BYTES, f"libraries of lane '{self.name}'")
        return self._start()

    async def _restart(self) -> None:
        try:
            if self._child is None and not self._closed:
                self._child = await asyncio.get_running_loop().run_in_executor(None, self._start_again)
                self.attach()
        except RuntimeUnavailable:
            # not an error if `close` killed the worker while it started
            if not self._closed:
                raise
        finally:
            self._restarting = None
            if self._closed:
                self._end()

    def _answered(self) -> None:
        child = self._child
        if child is not None and child.has_answered():
            self._settled(child.mailbox.outcome())

    def _settled(self, outcome: Executed | Exception) -> None:
        settle, self._settle = self._settle, None
        self._resolver.release()
        if settle is not None:
            settle(outcome)

    def _died(self) -> None:
        child, settle = self._child, self._settle
        if child is None:
            return
        how = f"process {child.pid} {child.exit_reason()}"
        # every death passes here, with or without a batch
        log.error("lane %s died: %s", self.name, how)
        outcome: Executed | Exception = LaneDied(f"lane '{self.name}': {how}")
        if settle is not None and child.has_answered():  # it died after finishing the batch
            outcome = child.mailbox.outcome()
        self._end()
        try:
            if settle is not None:
                settle(outcome)
        finally:
            self._on_death(self)

    def _end(self) -> None:
        child, self._child = self._child, None
        self._settle = None
        if child is None:
            return
        self._resolver.release()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(child.done)
            self._loop.remove_reader(child.ended)
        self._loop = None
        child.end()
