"""A canary's lanes: apart from the stable version's."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import PlanError, PlannedLane, PlannedPath, single_path_plan
from polyrec.planner.rollout.canary_plan import canary_plan
from tests.planner.planning import placed

LATENCY = LatencyModel(rows=(1, 10), median_s=(0.001, 0.002), tail_s=(0.002, 0.004))
KNOWN = LatencyModel(rows=(1, 10), median_s=(0.003, 0.004), tail_s=(0.004, 0.006))


def test_cpu_lanes_become_processes_of_their_own_name() -> None:
    (lane,) = canary_plan(single_path_plan(Path("b"), "table", "torch"), {}, LATENCY).lanes
    assert (lane.name, lane.kind, lane.device) == ("canary.cpu", "process", "cpu")


def test_lanes_of_other_devices_stay() -> None:
    plan = single_path_plan(Path("b"), "table", "torch", "cuda:0")
    lanes = (PlannedLane(name="cuda:0", device="cuda:0", kind="thread"), PlannedLane(name="c", kind="thread"))
    beside = PlannedPath(name="t@cpu", bundle=Path("b"), runtime="torch")
    plan = plan.model_copy(update={"lanes": lanes, "paths": (*plan.paths, beside)})
    assert [lane.kind for lane in canary_plan(plan, {}, LATENCY).lanes] == ["thread", "process"]


def test_unknown_latency_starts_from_the_stable_versions() -> None:
    plan = single_path_plan(Path("b"), "table", "torch")
    assert canary_plan(plan, {"table@cpu": KNOWN}, LATENCY).paths[0].latency == KNOWN
    assert canary_plan(plan, {"other@cpu": KNOWN}, LATENCY).paths[0].latency == LATENCY
    planned = plan.model_copy(update={"paths": (plan.paths[0].model_copy(update={"latency": KNOWN}),)})
    assert canary_plan(planned, {}, LATENCY).paths[0].latency == KNOWN


def test_only_rows_in_tiers_keep_a_plan_from_being_a_canary() -> None:
    plan = single_path_plan(Path("b"), "table", "torch")
    # as `polyrec plan` writes it where everything fits into memory
    assert canary_plan(placed(plan, host=9), {}, LATENCY).lanes[0].name == "canary.cpu"
    with pytest.raises(PlanError, match="a plan with rows in tiers cannot be a canary"):
        canary_plan(placed(plan, host=8, disk=1), {}, LATENCY)
