"""Opens the lanes of a plan, each with a runtime for every path on its device."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.memory import require_memory
from polyrec.models.runtimes import open_runtime
from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.tiers.stack import TierStack
from polyrec.planner.plan import PlanError, PlannedLane, PlannedPath
from polyrec.server.lanes.inline import InlineLane
from polyrec.server.lanes.lane import Lane, OnDeath
from polyrec.server.lanes.process import WORKER_BYTES, ProcessLane
from polyrec.server.lanes.resolving import PathRows
from polyrec.server.lanes.task import PathTask, SlabTask, WorkerTask
from polyrec.server.lanes.threaded import ThreadedLane
from polyrec.server.lanes.tiered_runtime import TieredRuntime
from polyrec.server.lanes.warm_up import warm_up

Paths = Sequence[tuple[PlannedPath, Bundle]]
Stacks = Mapping[str, TierStack]
"""Tiers by path. A path without an entry has all rows in its device's memory."""
NO_STACKS: Stacks = {}


@dataclass(frozen=True, slots=True)
class LaneOpening:
    """A lane to open.

    paths: the paths on the lane's device.
    on_death: called when a process lane dies; other lanes never call it.
    runtimes: open runtimes by path, which the lane then owns. Missing ones are opened over their tiers in
        `stacks`. A process lane opens all runtimes itself, and maps the slab of its tiers.
    spare: whether a process lane uses only spare CPU time.
    """

    planned: PlannedLane
    paths: Paths
    on_death: OnDeath
    runtimes: Mapping[str, Runtime] = field(default_factory=dict)
    stacks: Stacks = field(default_factory=dict)
    spare: bool = False

    def open(self) -> Lane:
        """Opens and warms up the lane; blocks.

        Raises RuntimeUnavailable, BundleError, or PlanError for cores that this machine does not have.
        """
        planned, stacks = self.planned, self.stacks
        _check_cores(planned)
        if planned.kind == "process":
            files = [bundle.files for _, bundle in self.paths]
            tiered = {
                path.name: PathRows(stacks[path.name], bundle.manifest.schema_)
                for path, bundle in self.paths
                if path.name in stacks
            }
            task = task_of(planned, self.paths, stacks, self.spare)
            return ProcessLane(planned.name, task, self.on_death, files, tiered)
        runtimes = {
            path.name: self.runtimes.get(path.name) or open_path(path, bundle, stacks.get(path.name))
            for path, bundle in self.paths
        }
        if planned.kind == "inline":
            return InlineLane(planned.name, runtimes)
        return ThreadedLane(planned.name, runtimes, planned.cores)


def open_lanes(openings: Sequence[LaneOpening]) -> tuple[Lane, ...]:
    """Opens all lanes of a plan. Worker processes take seconds to start, so they start in parallel.

    If a lane fails to open, closes all others and raises its error (see `LaneOpening.open`). Raises
    RuntimeUnavailable before it starts any process if there is certainly too little memory for all.
    """
    workers = sum(opening.planned.kind == "process" for opening in openings)
    require_memory(workers * WORKER_BYTES, f"process lanes ({workers})")
    opened: dict[int, Lane | Exception] = {}

    def open_at(i: int) -> None:
        try:
            opened[i] = openings[i].open()
        except Exception as e:
            opened[i] = e

    # daemon threads, so that a server stopped while loading does not wait for them
    starting = {
        i: threading.Thread(target=open_at, args=(i,), name=f"opening {o.planned.name}", daemon=True)
        for i, o in enumerate(openings)
        if o.planned.kind == "process"
    }
    for thread in starting.values():
        thread.start()
    for i in range(len(openings)):
        if i not in starting:
            open_at(i)
    for thread in starting.values():
        thread.join()
    found = [opened[i] for i in range(len(openings))]
    lanes = tuple(lane for lane in found if not isinstance(lane, Exception))
    for error in found:
        if isinstance(error, Exception):
            for lane in lanes:
                lane.close()
            raise error
    return lanes


def task_of(
    planned: PlannedLane, paths: Paths, stacks: Stacks = NO_STACKS, spare: bool = False
) -> WorkerTask:
    """Returns the task for a process lane's worker. stacks: tiers whose slabs are shared memory."""
    return WorkerTask(
        paths=tuple(
            PathTask(
                name=path.name,
                folder=bundle.path,
                files=bundle.files.descriptors,
                version=bundle.manifest.version,
                runtime=path.runtime,
                device=path.device,
                precision=path.precision,
                width=path.width,
                slab=SlabTask.from_slab(stacks[path.name].tiers.slab) if path.name in stacks else None,
            )
            for path, bundle in paths
        ),
        cores=planned.cores,
        spare=spare,
    )


def _check_cores(planned: PlannedLane) -> None:
    """Raises PlanError for a core that cannot be used.

    Tries each core, since a server that is pinned itself may still use other cores for its lanes.
    """
    before = os.sched_getaffinity(0)
    for core in planned.cores:
        try:
            os.sched_setaffinity(0, {core})  # for this thread only
        except OSError:
            raise PlanError(
                f"lane '{planned.name}': there is no core {core} for it; "
                f"this machine has {os.cpu_count()}, from 0"
            ) from None
        finally:
            os.sched_setaffinity(0, before)


def open_path(path: PlannedPath, bundle: Bundle, stack: TierStack | None = None) -> Runtime:
    """Opens and warms up a path's runtime, over its tiers if it has any. Raises RuntimeUnavailable."""
    runtime = open_runtime(path.runtime, bundle, path.device, path.precision, stack)
    if stack is not None:
        runtime = TieredRuntime(runtime)
    warm_up(runtime, bundle.manifest.schema_)
    return runtime
