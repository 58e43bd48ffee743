"""The inline lane, which executes batches in the event loop, without a hand-over."""

from __future__ import annotations

from collections.abc import Mapping

from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.schema.batch import Batch
from polyrec.planner.plan import LaneKind
from polyrec.server.lanes.lane import Settle, execute_batch


class InlineLane:
    """A lane that executes and settles a batch inside `execute`."""

    kind: LaneKind = "inline"
    pid: None = None

    def __init__(self, name: str, runtimes: Mapping[str, Runtime]) -> None:
        self.name = name
        self.alive = True
        self._runtimes = runtimes

    def attach(self) -> None:
        return

    def execute(self, path: str, batch: Batch, settle: Settle) -> None:
        settle(execute_batch(self._runtimes[path], batch))

    async def restart(self) -> None:
        return

    def close(self) -> None:
        self.alive = False
