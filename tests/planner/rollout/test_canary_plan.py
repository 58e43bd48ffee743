"""A canary's lanes: apart from the stable version's."""

from __future__ import annotations

from pathlib import Path

from polyrec.planner.plan import PlannedLane, PlannedPath, single_path_plan
from polyrec.planner.rollout.canary_plan import canary_plan


def test_cpu_lanes_become_processes_of_their_own_name() -> None:
    (lane,) = canary_plan(single_path_plan(Path("b"), "table", "torch")).lanes
    assert (lane.name, lane.kind, lane.device) == ("canary.cpu", "process", "cpu")


def test_lanes_of_other_devices_stay() -> None:
    plan = single_path_plan(Path("b"), "table", "torch", "cuda:0")
    lanes = (PlannedLane(name="cuda:0", device="cuda:0", kind="thread"), PlannedLane(name="c", kind="thread"))
    beside = PlannedPath(name="t@cpu", bundle=Path("b"), runtime="torch")
    plan = plan.model_copy(update={"lanes": lanes, "paths": (*plan.paths, beside)})
    assert [lane.kind for lane in canary_plan(plan).lanes] == ["thread", "process"]
