"""The interface of a lane, which executes one batch at a time and reports the outcome on the event loop.

The executor (server/dispatch/executor.py) passes a batch of ranks and the name of a path. The outcome is
probabilities and the seconds of each stage, or the exception that execution raised, or `LaneDied` if the
lane's process ended. A lane is used from one event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.schema.batch import F32, Batch
from polyrec.planner.plan import LaneKind
from polyrec.server.clock import clock


class LaneDied(Exception):
    """The process of a lane ended; the message has the lane's name and the exit code or signal."""


class ExecutionFailed(Exception):
    """A runtime in another process raised an exception; that process logged the traceback."""


@dataclass(frozen=True, slots=True)
class Executed:
    """One executed batch, with the seconds of its two stages.

    probabilities: float32 [rows], owned by the caller.
    waited_s: seconds for which a lane that uses only spare CPU time waited for a CPU.
    """

    probabilities: F32
    embed_s: float
    dense_s: float
    waited_s: float = 0.0

    @property
    def took_s(self) -> float:
        return self.embed_s + self.dense_s


Settle = Callable[[Executed | Exception], None]


class Lane(Protocol):
    """An executor on one device, with a runtime for each of the device's paths."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> LaneKind: ...

    @property
    def alive(self) -> bool:
        """Whether the lane takes batches; false after `close`, and after its process died until `restart`."""
        ...

    @property
    def pid(self) -> int | None:
        """Process id of a live process lane, None for other kinds."""
        ...

    def attach(self) -> None:
        """Starts to watch for the lane's death on the running event loop; otherwise the first batch does.

        Call it at most once.
        """
        ...

    def execute(self, path: str, batch: Batch, settle: Settle) -> None:
        """Starts to execute a batch, and calls `settle` with the outcome on the event loop.

        `settle` is called exactly once, unless the lane is closed first; an inline lane calls it before this
        method returns. The batch's arrays must not change until then.
        """
        ...

    async def restart(self) -> None:
        """Restarts a dead process lane without blocking the loop; does nothing for other lanes.

        Raises RuntimeUnavailable or BundleError, and leaves the lane dead.
        """
        ...

    def close(self) -> None:
        """Ends the lane in bounded time. A batch in progress is not settled."""
        ...


OnDeath = Callable[[Lane], None]
"""Called on the event loop after a lane's process ended and its batch was settled with LaneDied."""


def execute_batch(runtime: Runtime, batch: Batch) -> Executed | Exception:
    """Executes a batch on the calling thread; returns an exception instead of raising it."""
    try:
        start = clock()
        embedded = runtime.embed(batch)
        middle = clock()
        probabilities = runtime.dense(embedded)
        return Executed(probabilities, middle - start, clock() - middle)
    except Exception as e:
        return e
