"""Opens a lane of a plan: the runtime of every path of its device, and what executes them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from models.bundle import Bundle
from models.runtimes import open_runtime
from models.runtimes.runtime import Runtime
from planner.plan import PlanError, PlannedLane, PlannedPath
from server.lanes.inline import InlineLane
from server.lanes.lane import Lane, OnDeath
from server.lanes.process import ProcessLane
from server.lanes.task import OpenPath, Task
from server.lanes.threaded import ThreadedLane
from server.lanes.warm import warm_up

Paths = Sequence[tuple[PlannedPath, Bundle]]


def open_lane(
    planned: PlannedLane,
    paths: Paths,
    on_death: OnDeath,
    runtimes: Mapping[str, Runtime] | None = None,
) -> Lane:
    """A lane ready for batches of `paths`, those of its device; blocks until it is warm.

    runtimes: by path, ready ones that the lane may have for itself (a runtime belongs to one lane); what
        is not among them is opened here. A process lane opens its own.
    on_death: see server.lanes.lane.OnDeath; only a process can die.
    Raises RuntimeUnavailable, BundleError, or PlanError for cores that this machine does not have.
    """
    usable = os.sched_getaffinity(0)
    if missing := [core for core in planned.cores if core not in usable]:
        listed = ", ".join(map(str, sorted(usable)))
        raise PlanError(f"lane '{planned.name}': core {missing[0]} cannot be used here; usable: {listed}")
    if planned.kind == "process":
        return ProcessLane(planned.name, _task(planned, paths), on_death)
    given = runtimes or {}
    own = {path.name: given.get(path.name) or opened(path, bundle) for path, bundle in paths}
    if planned.kind == "inline":
        return InlineLane(planned.name, own)
    return ThreadedLane(planned.name, own, planned.cores)


def _task(planned: PlannedLane, paths: Paths) -> Task:
    return Task(
        paths=tuple(
            OpenPath(
                name=path.name,
                bundle=bundle.path.resolve(),
                version=bundle.manifest.version,
                runtime=path.runtime,
                device=path.device,
                precision=path.precision,
            )
            for path, bundle in paths
        ),
        cores=planned.cores,
    )


def opened(path: PlannedPath, bundle: Bundle) -> Runtime:
    """The runtime of a path, warm. Raises RuntimeUnavailable."""
    runtime = open_runtime(path.runtime, bundle, path.device, path.precision)
    warm_up(runtime, bundle.manifest.schema_)
    return runtime
