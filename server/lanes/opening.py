"""Opens a lane of a plan: the runtime of every path of its device, and what executes them."""

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
from polyrec.server.lanes.task import OpenPath, Task
from polyrec.server.lanes.threaded import ThreadedLane
from polyrec.server.lanes.tier_reading import TieredRuntime
from polyrec.server.lanes.warm_up import warm_up

Paths = Sequence[tuple[PlannedPath, Bundle]]
Stacks = Mapping[str, TierStack]
"""The tiers that hold a path's rows, by its name; a path that is not there has them all on its device."""
NOTHING: Mapping[str, Runtime] = {}
NO_STACKS: Stacks = {}


def open_lane(
    planned: PlannedLane,
    paths: Paths,
    on_death: OnDeath,
    runtimes: Mapping[str, Runtime] = NOTHING,
    stacks: Stacks = NO_STACKS,
) -> Lane:
    """A lane ready for batches of `paths`, those of its device; blocks until it is warm.

    runtimes: by path, ready ones that the lane may have for itself (a runtime belongs to one lane); what
        is not among them is opened here, over its tiers in `stacks`. A process lane opens its own, and
        has all rows in memory.
    on_death: see polyrec.server.lanes.lane.OnDeath; only a process can die.
    Raises RuntimeUnavailable, BundleError, or PlanError for cores that this machine does not have.
    """
    _check_cores(planned)
    if planned.kind == "process":
        files = [bundle.files for _, bundle in paths]
        return ProcessLane(planned.name, task_of(planned, paths), on_death, files)
    own = {
        path.name: runtimes.get(path.name) or opened(path, bundle, stacks.get(path.name))
        for path, bundle in paths
    }
    if planned.kind == "inline":
        return InlineLane(planned.name, own)
    return ThreadedLane(planned.name, own, planned.cores)


@dataclass(frozen=True, slots=True)
class Opening:
    """What `open_lane` takes."""

    planned: PlannedLane
    paths: Paths
    on_death: OnDeath
    runtimes: Mapping[str, Runtime] = field(default_factory=dict)
    stacks: Stacks = field(default_factory=dict)

    def open(self) -> Lane | Exception:
        """The lane, or why there is none."""
        try:
            return open_lane(self.planned, self.paths, self.on_death, self.runtimes, self.stacks)
        except Exception as e:
            return e


def open_lanes(openings: Sequence[Opening]) -> tuple[Lane, ...]:
    """All lanes of a plan; their processes, which take seconds to start, start side by side.

    Raises what `open_lane` raises; no lane is left open then.
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


def task_of(planned: PlannedLane, paths: Paths) -> Task:
    """What the worker of a process lane is told."""
    return Task(
        paths=tuple(
            OpenPath(
                name=path.name,
                folder=bundle.path,
                files=bundle.files.descriptors,
                version=bundle.manifest.version,
                runtime=path.runtime,
                device=path.device,
                precision=path.precision,
            )
            for path, bundle in paths
        ),
        cores=planned.cores,
    )


def _check_cores(planned: PlannedLane) -> None:
    """By trying: a server that was itself pinned may still give its lanes other cores."""
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


def opened(path: PlannedPath, bundle: Bundle, stack: TierStack | None = None) -> Runtime:
    """The runtime of a path, warm; over its tiers where it has some. Raises RuntimeUnavailable."""
    runtime = open_runtime(path.runtime, bundle, path.device, path.precision, stack)
    if stack is not None:
        runtime = TieredRuntime(runtime)
    warm_up(runtime, bundle.manifest.schema_)
    return runtime
