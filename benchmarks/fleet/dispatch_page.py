"""Writes the page of the simulated fleets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from polyrec.models.amounts import percent
from polyrec.report.text import markdown_table


def page(found: dict[str, Any]) -> str:
    """Returns fleet-simulated.md. found: of `dispatch`."""
    runs = found["runs"]
    largest = max(run["nodes"] for run in runs)
    head = ["nodes", "traffic", "policy", "of the bound", "rows in time", "rejected", "late"]
    lines = [
        *_introduction(found, largest),
        "## By size of the fleet",
        "",
        "One dispatcher, reports every 100 ms.",
        "",
        *markdown_table(
            head,
            [
                [f"{r['nodes']:,}", r["traffic"], r["policy"], *_shares(r)]
                for r in runs
                if r["report_s"] == 0.1 and r["dispatchers"] == 1
            ],
        ),
        "",
        "On one node all policies are equal; the rest to the bound is lost by the node's own router.",
        "",
        _read(runs, largest),
        "",
        f"## Old state, {largest:,} nodes",
        "",
        "Each node reports at the given interval, at a phase of its own, so state is up to that old.",
        "",
        *markdown_table(["reports every", *head[1:]], list(_ages(runs, largest))),
        "",
        f"## Several dispatchers, {largest:,} nodes, diurnal",
        "",
        "Each dispatcher knows what it sent itself, and all reports.",
        "",
        *markdown_table(
            ["dispatchers", *head[2:]],
            [
                [str(r["dispatchers"]), r["policy"], *_shares(r)]
                for r in runs
                if r["nodes"] == largest
                and r["traffic"] == "diurnal"
                and r["report_s"] == 0.1
                and r["policy"] in {one["policy"] for one in runs if one["dispatchers"] > 1}
            ],
        ),
        "",
        *_node(found),
    ]
    return "\n".join(lines) + "\n"


def _introduction(found: dict[str, Any], largest: int) -> list[str]:
    total = sum(run["queries"] for run in found["runs"])
    kinds = "; ".join(
        f"{name} ({percent(kind['share'])}: "
        + ", ".join(f"{n} {device} lane{'s' * (n > 1)}" for device, n in kind["lanes"].items())
        + f", {kind['queries_s']:,.0f} queries/s at most; {', '.join(kind['paths'])})"
        for name, kind in found["kinds"].items()
    )
    return [
        "# Results: a simulated fleet",
        "",
        _finding(found["runs"], largest),
        "",
        f"The simulation has {total / 1e6:.1f} million queries of about 1,000 rows with a budget of "
        f"{found['budget_ms']:g} ms, on 1 to {largest:,} nodes of three kinds. "
        "`python -m benchmarks.fleet.dispatch` writes this page "
        f"({found['machine']}, one core, {found['made'][:10]}; all runs are in "
        "[fleet-simulated.json](fleet-simulated.json)).",
        "",
        f"Kinds: {kinds}. The model is MP-Rec's Kaggle DLRM on *described* machines (rooflines); "
        "an answer is worth its accuracy (from memory) above a constant's. A single node has an accelerator.",
        "",
        "Traffic is on average 65% of the capacity of all nodes on their fastest paths. `diurnal`: a sine "
        "from 22% to 108% of that capacity, with the day compressed into the time of the queries. `bursty`: "
        "bursts of three times the low rate. Rates and execution times are those of the described nodes.",
        "",
        "**Of the bound**: information in time, divided by the clairvoyant bound of all nodes pooled as one "
        "machine (planner/simulation/bound.py), which no policy and no division among nodes can exceed.",
        "",
        "Policies:",
        "",
        "- `round robin`: one node after the other, whatever its size.",
        "- `random`: drawn by capacity.",
        "- `least outstanding`: the node with the fewest queries from this dispatcher, whatever its size.",
        "- `two choices, as reported`: of two drawn by capacity, the better one by its last report.",
        "- `two choices, predicted`: Polyrec's ([fleet](../fleet.md#which-replica-answers)); the same, but "
        "extrapolates the reports.",
        "",
    ]


def _node(found: dict[str, Any]) -> list[str]:
    """Returns the cost of a decision, and the simplified node beside the full simulator."""
    return [
        "## Cost of a decision",
        "",
        "Microseconds to choose a replica and record what was sent to it (Python, beside other work on the "
        "machine).",
        "",
        *markdown_table(
            ["policy", *(f"{int(n):,} nodes" for n in next(iter(found["decision_s"].values())))],
            [
                [policy, *(f"{1e6 * s:.1f}" for s in by.values())]
                for policy, by in found["decision_s"].items()
            ],
        ),
        "",
        "## The simplified node",
        "",
        "A node here is a queue, its lanes and the choice of paths by price "
        "(benchmarks/fleet/node_model.py), because the full simulator would take too long for a thousand. "
        "Left out: the event loop, parsing and answering, splitting of queries over lanes, deadlines that "
        "differ, corrections of latency, faults, lost nodes, the network's time. Both on one node, Poisson, "
        "share of the bound (rows in time); load relative to the capacity on the fastest paths:",
        "",
        *markdown_table(
            ["kind", "load", "full simulator", "simplified"],
            [
                [c["kind"], f"{c['load']:g}"]
                + [f"{percent(c[k])} ({percent(c[k + '_in_time'])})" for k in ("full", "simple")]
                for c in found["check"]
            ],
        ),
    ]


def _share(runs: Sequence[dict[str, Any]], nodes: int, policy: str, report_s: float) -> str:
    """Share of the bound, diurnal traffic, one dispatcher."""
    which = (nodes, "diurnal", policy, report_s, 1)
    keys = ("nodes", "traffic", "policy", "report_s", "dispatchers")
    return percent(next(r for r in runs if tuple(r[k] for k in keys) == which)["of_bound"])


def _finding(runs: Sequence[dict[str, Any]], largest: int) -> str:
    predicted, reported = (
        _share(runs, largest, policy, 1.0)
        for policy in ("two choices, predicted", "two choices, as reported")
    )
    return (
        f"Choosing replicas by predicted completion reaches {predicted} of the clairvoyant bound on "
        f"{largest:,} nodes even with reports up to 1 s old; choosing by the reports alone, {reported}."
    )


def _read(runs: Sequence[dict[str, Any]], largest: int) -> str:
    """Summarizes the tables in words, with figures."""
    told = {
        policy: ", ".join(_share(runs, largest, policy, age) for age in (0.01, 0.1, 1.0))
        for policy in ("two choices, predicted", "two choices, as reported")
    }
    return (
        f"On {largest:,} nodes with diurnal traffic and reports every 10 ms, 100 ms and 1 s, "
        f"{' and '.join(f'`{policy}` reaches {shares}' for policy, shares in told.items())} of the bound. "
        f"`random`, which needs no reports, reaches {_share(runs, largest, 'random', 0.1)}. Other mixes of "
        "paths may rank policies differently: on the mix of tests/benchmarks/fleet/test_simulator.py, whose "
        "best path takes four times the fastest's time, reports twice as old as the budget put `predicted` "
        "2% behind `random` at 95% load."
    )


def _shares(run: dict[str, Any]) -> list[str]:
    return [percent(run[key]) for key in ("of_bound", "in_time", "rejected", "late")]


def _ages(runs: Sequence[dict[str, Any]], largest: int) -> Iterable[list[str]]:
    chosen = [
        r
        for r in runs
        if r["nodes"] == largest and r["dispatchers"] == 1 and r["policy"].startswith("two choices")
    ]
    for r in sorted(chosen, key=lambda r: (r["traffic"] != "diurnal", r["report_s"], r["policy"])):
        yield [f"{1e3 * r['report_s']:g} ms", r["traffic"], r["policy"], *_shares(r)]
