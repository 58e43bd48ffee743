"""Formats a fleet plan as text: nodes by hour, cost, models, worth of another node, effects of faults."""

from __future__ import annotations

from polyrec.models.amounts import percent
from polyrec.models.text_table import aligned
from polyrec.planner.fleet.provisioning.fleet_plan import FleetPlan


def page(plan: FleetPlan) -> list[str]:
    """Returns the lines for a terminal."""
    types = plan.nodes_by_type
    lines = [
        f"{plan.hours} hours: ${plan.cost:,.2f}, ${plan.cost_per_million:.3g} per million predictions; "
        f"a fleet as good costs at most {percent(plan.gap)} less" + ("" if plan.proven else " (not proven)"),
        *([f"by hour: at the rate and {100 * plan.spare:g}% spare"] if plan.spare else []),
        "",
        *aligned(
            [
                ["hour", *types, "$/h", *(f"{m.name} in time" for m in plan.models)]
                + [f"{m.name} quality" for m in plan.models],
                *(
                    [str(h), *(f"{n[h]:,}" for n in types.values()), f"{plan.cost_by_hour[h]:,.2f}"]
                    + [percent(m.served_by_hour[h]) for m in plan.models]
                    + [_quality(m.quality_by_hour[h]) for m in plan.models]
                    for h in range(plan.hours)
                ),
            ]
        ),
        "",
        *(
            f"{group.type}, {min(group.nodes):,} to {max(group.nodes):,} nodes with: "
            + (", ".join(f"{name} {percent(share)}" for name, share in group.paths.items()) or "no load")
            for group in plan.groups
        ),
        "",
        *aligned(
            [
                ["node type", "$/h", "one more saves $/h, mean", "at most"],
                *([w.type, f"{w.price:.3f}", f"{w.worth:.3f}", f"{w.at_most:.3f}"] for w in plan.worth),
            ]
        ),
        "",
        *aligned(
            [
                ["with the same nodes", *(f"{m.name} in time (worst hour), quality" for m in plan.models)],
                *(
                    [w.what]
                    + [
                        f"{percent(w.served[m.name])} ({percent(w.worst_hour[m.name])}), "
                        f"{_quality(w.quality[m.name])}"
                        for m in plan.models
                    ]
                    for w in plan.what_if
                ),
            ]
        ),
    ]
    return lines


def _quality(mean: float) -> str:
    """Formats the mean quality of answered rows; 0 stands for none."""
    return f"{mean:.5f}" if mean else "-"
