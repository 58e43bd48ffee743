"""The interface of a lane: executes one batch at a time on a given path, and settles it on the event loop.

A batch of ranks and the name of a path go in; probabilities and the seconds of each stage come out, or the
exception that execution raised, or `LaneDied` if the lane's process ended. The caller gives a lane one batch
at a time, from one event loop.
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
    """The process of a lane ended; the message names the lane and says how (exit code or signal)."""


class ExecutionFailed(Exception):
    """An exception of a runtime in another process, in one line; that process's log has the traceback."""


@dataclass(frozen=True, slots=True)
class Executed:
    """One executed batch. probabilities: float32 [rows], owned by the caller; seconds of the two stages.

    waited_s: seconds for which a lane that runs in spare time waited for a processor.
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
    """One executor on a device, with a runtime for every path of it."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> LaneKind: ...

    @property
    def alive(self) -> bool:
        """Whether it takes batches: false from its process's death until `restart`, and once closed."""
        ...

    @property
    def pid(self) -> int | None:
        """Process id of a live process lane; None for the other kinds."""
        ...

    def attach(self) -> None:
        """Watches for the lane's death on the running event loop, also while idle; to be called once.

        Without it, watching begins with the first batch.
        """
        ...

    def execute(self, path: str, batch: Batch, settle: Settle) -> None:
        """Begins to execute a batch, and later calls `settle` with the outcome, on the event loop.

        `settle` is called exactly once unless the lane is closed before; an inline lane calls it before this
        returns. The batch's arrays must not change until then.
        """
        ...

    async def restart(self) -> None:
        """Restarts the process of a dead process lane without blocking the loop; ignores other lanes.

        Raises RuntimeUnavailable or BundleError; the lane is then still dead.
        """
        ...

    def close(self) -> None:
        """Ends the lane, in bounded time; a batch in it is not settled."""
        ...


OnDeath = Callable[[Lane], None]
"""Called on the event loop after a lane's process has ended and its batch was settled with LaneDied."""


def run(runtime: Runtime, batch: Batch) -> Executed:
    """Executes a batch on the calling thread. Raises what the runtime raises."""
    start = clock()
    embedded = runtime.embed(batch)
    middle = clock()
    probabilities = runtime.dense(embedded)
    return Executed(probabilities, middle - start, clock() - middle)


def attempt(runtime: Runtime, batch: Batch) -> Executed | Exception:
    """`run` that returns its exception."""
    try:
        return run(runtime, batch)
    except Exception as e:
        return e
