"""Formats a training plan as text: the proposal, placement of rows, and speed by number of nodes."""

from __future__ import annotations

from polyrec.models.amounts import percent, rate, size
from polyrec.models.text_table import aligned
from polyrec.planner.training.training_plan import TrainingOption, TrainingPlan

PLACES = ("replicated", "memory", "slow memory", "disk")
LINES_PER_TYPE = 12


def page(plan: TrainingPlan) -> list[str]:
    """Returns the lines for a terminal."""
    chosen = plan.chosen
    lines = ["Computed from the description; nothing was measured.", "", _summary(chosen, plan)]
    if plan.baseline is not None and chosen.nodes > 1:
        lines.append(
            "against every lookup exchanged, on the same nodes: "
            f"{chosen.rows_per_s / plan.baseline.rows_per_s:.2f} times the rows/s, "
            f"{chosen.sent_per_row / plan.baseline.sent_per_row:.2f} times the bytes"
        )
    places = [p for p in PLACES if any(p in rows for rows in chosen.tables.values())]
    lines += ["", *aligned([["rows", *places], *(
        [name, *(f"{rows.get(p, 0):,}" for p in places)] for name, rows in chosen.tables.items()
    )])]  # fmt: skip
    lines += ["", *_by_nodes(plan)]
    if plan.wanted_rows_per_s is not None:
        lines += ["", f"least nodes for {rate(plan.wanted_rows_per_s)} rows/s: " + ", ".join(
            f"{name} {'not reached' if n is None else n}" for name, n in plan.min_nodes.items()
        )]  # fmt: skip
    return lines


def _summary(chosen: TrainingOption, plan: TrainingPlan) -> str:
    wanted = plan.wanted_rows_per_s
    short = wanted is not None and chosen.rows_per_s < wanted
    text = (
        f"{chosen.nodes} x {chosen.node}: {rate(chosen.rows_per_s)} rows/s"
        + (f", which is less than the {rate(wanted)} wanted" if short and wanted else "")
        + f"; {chosen.binds} binds"
    )
    if chosen.nodes > 1:
        text += f"; exchange {chosen.form}, {size(chosen.sent_per_row)} a row"
    if chosen.replicated_bytes:
        text += (
            f"; {size(chosen.replicated_bytes)} replicated on each, "
            f"{percent(chosen.popular)} of the rows look up nothing else"
        )
    if chosen.price_per_hour:
        text += f"; ${chosen.price_per_hour:,.2f}/h, ${chosen.price_per_billion_rows:,.2f} for 1e9 rows"
    return text


def _by_nodes(plan: TrainingPlan) -> list[str]:
    """Returns a table of the fastest option for some numbers of nodes of each type."""
    head = ["node type", "nodes", "rows/s", "binds", "exchange", "bytes/row", "replicated", "$/1e9 rows"]
    cells = [head]
    for options in plan.fastest.values():
        step = -(-len(options) // LINES_PER_TYPE)
        for option in options[::step] if step else ():
            cells.append([
                option.node, str(option.nodes), rate(option.rows_per_s), option.binds,
                option.form if option.nodes > 1 else "-", size(option.sent_per_row),
                size(option.replicated_bytes), f"{option.price_per_billion_rows:,.2f}",
            ])  # fmt: skip
    return aligned(cells)
