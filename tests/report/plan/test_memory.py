from __future__ import annotations

from pathlib import Path

import pytest

from polyrec.planner.deployment.proposal import propose
from polyrec.planner.deployment.requirements import Requirements
from polyrec.planner.plan import Plan, PlanError, single_path_plan
from polyrec.report.chart import png
from polyrec.report.plan import memory
from polyrec.report.plan.memory import rows_by_bundle
from tests.planner.planning import machine, path, profile, skewed, traffic


def plan() -> Plan:
    """A GPU path with rows in host memory, beside a CPU path of another bundle."""
    on = machine(cores=4, gpu=500_000, disk=True)
    gpu = path("table@cuda:0", fixed=0, row_s=1e-7)
    cpu = path("dhe@cpu", quality=0.9, tables={"t": 5000}, fixed=100, row_s=1e-4)
    requirements = Requirements(0.05, traffic(2000))
    return propose(profile(gpu, cpu, on=on), requirements, [skewed(1000), None], more=False).plan


def test_a_picture_is_a_png() -> None:
    assert png(memory.draw(plan())).startswith(b"\x89PNG")


def test_segments_add_up_to_the_placement() -> None:
    made = plan()
    assert made.placement is not None
    found = {m.place: rows_by_bundle(made, m) for m in made.placement.memories}
    assert found["cuda:0"] == {"table": 500_000}
    assert found["cpu"] == {"table": 500_000, "dhe": 5000}
    for m in made.placement.memories:
        assert sum(found[m.place].values()) == m.rows_bytes


def test_a_plan_without_a_placement_is_an_error() -> None:
    with pytest.raises(PlanError, match="no placement to draw"):
        memory.draw(single_path_plan(Path("b"), "table", "onnx"))
