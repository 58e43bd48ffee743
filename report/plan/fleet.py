"""Charts a fleet plan: the rate by hour, and the nodes rented for it."""

from __future__ import annotations

import numpy as np

from polyrec.planner.fleet.provisioning.description import Fleet
from polyrec.planner.fleet.provisioning.fleet_plan import FleetPlan
from polyrec.report.chart import Chart, Series


def charts(plan: FleetPlan, fleet: Fleet) -> list[Chart]:
    """Returns charts of each model's rate, nodes by type, dollars per hour, and each model's quality."""
    hours = np.arange(plan.hours, dtype=np.float64)

    def layers(values: dict[str, tuple[float, ...]]) -> tuple[Series, ...]:
        return tuple(
            Series(name, hours, np.array(y, np.float64), i) for i, (name, y) in enumerate(values.items())
        )

    nodes = {name: tuple(float(n) for n in counts) for name, counts in plan.nodes_by_type.items()}
    rates = layers({m.name: m.rate for m in fleet.models})
    quality = layers({m.name: tuple(q or np.nan for q in m.quality_by_hour) for m in plan.models})
    return [
        Chart("Queries/s", "", "hour", "queries/s", rates, kind="layers"),
        Chart("Nodes", "", "hour", "nodes", layers(nodes), kind="layers"),
        Chart("Cost", "", "hour", "$ an hour", layers({"this plan": plan.cost_by_hour})),
        Chart("Quality", "", "hour", "mean quality of answered rows", quality, from_zero=False),
    ]
