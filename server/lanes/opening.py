"""Opens the lanes of a plan, each with a runtime for every path of its device."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.runtimes import open_runtime
from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.tiers.stack import TierStack
from polyrec.planner.plan import PlanError, PlannedLane, PlannedPath
from polyrec.server.lanes.inline import InlineLane
from polyrec.server.lanes.lane import Lane, OnDeath
from polyrec.server.lanes.process import ProcessLane
from polyrec.server.lanes.resolving import PathRows
from polyrec.server.lanes.task import PathTask, SlabTask, WorkerTask
from polyrec.server.lanes.threaded import ThreadedLane
from polyrec.server.lanes.tiered_runtime import TieredRuntime
from polyrec.server.lanes.warm_up import warm_up

Paths = Sequence[tuple[PlannedPath, Bundle]]
Stacks = Mapping[str, TierStack]
"""Tiers by path; a path without an entry has all rows in its device's memory."""
NOTHING: Mapping[str, Runtime] = {}
NO_STACKS: Stacks = {}


def open_lane(
    planned: PlannedLane,
    paths: Paths,
    on_death: OnDeath,
    runtimes: Mapping[str, Runtime] = NOTHING,
    stacks: Stacks = NO_STACKS,
    spare: bool = False,
) -> Lane:
    """Opens and warms up a lane for `paths`, those of its device; blocks.

    runtimes: open runtimes by path, which the lane then owns; missing ones are opened here, over their tiers
        in `stacks`. A process lane opens its own, and maps the slab of tiers.
    on_death: only a process lane calls it.
    spare: whether a process lane runs in spare time only.
    Raises RuntimeUnavailable, BundleError, or PlanError for cores that this machine does not have.
    """
    _check_cores(planned)
    if planned.kind == "process":
        files = [bundle.files for _, bundle in paths]
        tiered = {
            path.name: PathRows(stacks[path.name], bundle.manifest.schema_)
            for path, bundle in paths
            if path.name in stacks
        }
        return ProcessLane(planned.name, task_of(planned, paths, stacks, spare), on_death, files, tiered)
    lane_runtimes = {
        path.name: runtimes.get(path.name) or open_path(path, bundle, stacks.get(path.name))
        for path, bundle in paths
    }
    if planned.kind == "inline":
        return InlineLane(planned.name, lane_runtimes)
    return ThreadedLane(planned.name, lane_runtimes, planned.cores)


@dataclass(frozen=True, slots=True)
class LaneOpening:
    """The arguments of `open_lane`."""

    planned: PlannedLane
    paths: Paths
    on_death: OnDeath
    runtimes: Mapping[str, Runtime] = field(default_factory=dict)
    stacks: Stacks = field(default_factory=dict)
    spare: bool = False

    def open(self) -> Lane | Exception:
        """Opens the lane; returns the exception if that fails."""
        try:
            return open_lane(self.planned, self.paths, self.on_death, self.runtimes, self.stacks, self.spare)
        except Exception as e:
            return e


def open_lanes(openings: Sequence[LaneOpening]) -> tuple[Lane, ...]:
    """Opens all lanes of a plan; processes, which take seconds to start, start in parallel.

    Raises what `open_lane` raises, after closing all other lanes.
    """
    opened: dict[int, Lane | Exception] = {}

    def open_at(i: int) -> None:
        opened[i] = openings[i].open()

    # daemons: a server that is stopped while it loads does not wait for them
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
    """The task of a process lane's worker. stacks: with shared slabs."""
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
                slab=SlabTask.of(stacks[path.name].tiers.slab) if path.name in stacks else None,
            )
            for path, bundle in paths
        ),
        cores=planned.cores,
        spare=spare,
    )


def _check_cores(planned: PlannedLane) -> None:
    """Raises PlanError for a core that cannot be used.

    Tries each one, since a server that is itself pinned may still give its lanes other cores.
    """
    before = os.sched_getaffinity(0)
    for core in planned.cores:
        try:
            os.sched_setaffinity(0, {core})  # of this thread
        except OSError:
            raise PlanError(
                f"lane '{planned.name}': there is no core {core} for it; "
                f"this machine has {os.cpu_count()}, from 0"
            ) from None
        finally:
            os.sched_setaffinity(0, before)


def open_path(path: PlannedPath, bundle: Bundle, stack: TierStack | None = None) -> Runtime:
    """Opens and warms up the runtime of a path, over its tiers if it has some. Raises RuntimeUnavailable."""
    runtime = open_runtime(path.runtime, bundle, path.device, path.precision, stack)
    if stack is not None:
        runtime = TieredRuntime(runtime)
    warm_up(runtime, bundle.manifest.schema_)
    return runtime
