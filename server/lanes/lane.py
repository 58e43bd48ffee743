"""The lane: executes one batch at a time on the path it is told, and settles it on the event loop.

A batch of ranks and the name of a path go in; probabilities and the time of each stage come out, or the
exception that execution raised, or `LaneDied` where the process of the lane ended. The caller sees to
it that a lane has one batch at a time, and uses it from one event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.schema.batch import F32, Batch
from polyrec.planner.plan import LaneKind

clock = time.perf_counter


class LaneDied(Exception):
    """The process of a lane ended; the message names the lane and says how (exit code or signal)."""


class ExecutionFailed(Exception):
    """What a runtime raised in another process, in one line; that process's log has the trace."""


@dataclass(frozen=True, slots=True)
class Executed:
    """One executed batch. probabilities: float32 [rows], the caller's own; seconds of the two stages."""

    probabilities: F32
    embed_s: float
    dense_s: float

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
        """Whether it takes batches: not after its process died, until `restart`, and not once closed."""
        ...

    @property
    def pid(self) -> int | None:
        """Of a process lane that is alive; None for the other kinds."""
        ...

    def attach(self) -> None:
        """To be called once on the event loop that will use the lane.

        From then on a death is told, also while idle; without it, from the first batch on.
        """
        ...

    def execute(self, path: str, batch: Batch, settle: Settle) -> None:
        """Starts on a batch (on the event loop) and calls `settle` with the outcome, on the same loop.

        `settle` is called exactly once unless the lane is closed before; by an inline lane before this
        returns. The batch's arrays must not change until then.
        """
        ...

    async def restart(self) -> None:
        """Brings a dead process lane back, without blocking the loop; nothing to do for any other.

        Raises what opening raises (RuntimeUnavailable, BundleError); the lane is then still dead.
        """
        ...

    def close(self) -> None:
        """Ends the lane, in bounded time; a batch in it is not settled any more."""
        ...


OnDeath = Callable[[Lane], None]
"""Called on the event loop when a lane's process has ended, also while idle, after its batch was settled
with LaneDied; `alive` is False by then."""


def run(runtime: Runtime, batch: Batch) -> Executed:
    """Executes a batch here and now. Raises what the runtime raises."""
    start = clock()
    embedded = runtime.embed(batch)
    middle = clock()
    probabilities = runtime.dense(embedded)
    return Executed(probabilities, middle - start, clock() - middle)


def attempt(runtime: Runtime, batch: Batch) -> Executed | Exception:
    """`run`, its exception returned."""
    try:
        return run(runtime, batch)
    except Exception as e:
        return e
