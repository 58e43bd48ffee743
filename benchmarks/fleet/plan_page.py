"""Writes the page and the picture of the planned day."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyrec.models.amounts import percent
from polyrec.report.chart import Chart, Series, draw, png
from polyrec.report.text import markdown_table

PICTURE = "fleet-plan.png"
SHOWN = ("plan", "peak", "cheapest")


def write(found: dict[str, Any], out: Path) -> None:
    """Writes fleet-plan.md and its picture. found: of `plan_day`."""
    (out / PICTURE).write_bytes(png(draw(_charts(found))))
    (out / "fleet-plan.md").write_text(page(found))


def page(found: dict[str, Any]) -> str:
    """Returns the page. found: of `plan_day`."""
    ways, models = found["ways"], list(found["rates"])
    lines = [
        "# Results: a fleet for a day of a million requests a second",
        "",
        _finding(ways),
        "",
        *_conditions(found),
        "",
        *_ways(found, models),
        "",
        _read(ways),
        "",
        f"![Requests, nodes, cost and accuracy by hour]({PICTURE})",
        "",
        "## By hour",
        "",
        *_by_hour(found),
        "",
        *_paths_by_node_type(ways["plan"]["groups"]),
        "",
        *_shadow_prices(ways["plan"]["worth"]),
        "",
        "## What if",
        "",
        "Paths are chosen again for the same nodes, first for rows in time (the same share of every model), "
        "then for accuracy. Figures: share of rows in time over the day (in the worst hour), mean accuracy.",
        "",
        *markdown_table(
            ["", *(f"{way}: {m}" for way in SHOWN for m in models)], list(_what_ifs(ways, models))
        ),
        "",
        "Not modeled: the time to start nodes, the transition itself, and uneven load between nodes.",
    ]
    return "\n".join(lines) + "\n"


def _conditions(found: dict[str, Any]) -> list[str]:
    """Returns the lines on load, node types, command and machine, and on what was not measured."""
    peak = sum(max(rates) for rates in found["rates"].values())
    least = sum(min(rates) for rates in found["rates"].values())
    types = ", ".join(
        f"{n['name']} ${n['price_per_hour']:.2f}"
        + (f" (at most {n['most']}, {n['spot_loss']:.0%} may be lost)" if n["most"] else "")
        for n in found["nodes"]
    )
    return [
        f"Two models (MP-Rec's DLRMs for Criteo Kaggle and Terabyte) get {peak:,.0f} requests/s of 128 rows "
        f"(lognormal) at the peak and {least:,.0f} at the trough, a cosine between, with {found['slo_ms']:g} "
        f"ms at p99. Node types, dollars an hour: {types}. "
        f"`python -m benchmarks.fleet.plan_day` writes this page "
        f"({found['machine']}, one core, {found['made'][:10]}; everything is in "
        "[fleet-plan.json](fleet-plan.json)).",
        "",
        "**Nothing here was served.** Latencies are rooflines of *described* machines, accuracies are the "
        "paper's from memory, prices are assumed, and headroom under the SLO is the planner's. How it is "
        "solved: [fleet](../fleet.md).",
    ]


def _ways(found: dict[str, Any], models: Sequence[str]) -> list[str]:
    """Returns the section on ways to provision and their costs."""
    ways = found["ways"]
    asked = ", ".join(f"{name} {value:.4f}" for name, value in found["quality"].items())
    return [
        "## Ways to provision",
        "",
        f"- `plan`: nodes by the hour, all representations, a required mean accuracy in each hour ({asked}).",
        "- `peak`: as many nodes in every hour as in the busiest, the same accuracy over the day.",
        "- `plan over the day`: nodes by the hour, the same accuracy over the day.",
        "- `as good as dhe`: nodes by the hour, DHE's accuracy in each hour.",
        "- `cheapest`: nodes by the hour, no required accuracy.",
        "- `only ...`: one representation with its accuracy; nodes by the hour, or the peak's all day.",
        "",
        *markdown_table(
            ["", "$ a day", "over plan", "$ per million predictions", "nodes in use, most and least"]
            + [f"{m}: accuracy" for m in models]
            + ["in time", "gap", "solved in s"],
            [_way(name, one, ways["plan"]) for name, one in ways.items()],
        ),
    ]


def _paths_by_node_type(groups: Iterable[dict[str, Any]]) -> list[str]:
    return [
        "## Which paths where",
        "",
        *markdown_table(
            ["node type", "nodes", "rows answered by"],
            [
                [
                    group["type"],
                    f"{min(group['nodes']):,} to {max(group['nodes']):,}",
                    ", ".join(f"{name} {percent(share)}" for name, share in group["paths"].items()) or "none",
                ]
                for group in groups
            ],
        ),
    ]


def _shadow_prices(worth: Iterable[dict[str, Any]]) -> list[str]:
    return [
        "## Shadow prices",
        "",
        "What one more node would save in an hour. A type worth less than it costs is not rented; one worth "
        "more is limited by its maximum.",
        "",
        *markdown_table(
            ["node type", "costs $/h", "is worth $/h, mean of the day", "at most"],
            [[w["type"], f"{w['price']:.2f}", f"{w['worth']:.3f}", f"{w['at_most']:.3f}"] for w in worth],
        ),
    ]


def _over(ways: dict[str, Any], one: str, other: str) -> str:
    """Returns the cost of one way divided by that of another."""
    return f"{ways[one]['cost'] / ways[other]['cost']:.2f}"


def _finding(ways: dict[str, Any]) -> str:
    return (
        f"For DHE's accuracy, DHE alone costs {_over(ways, 'only dhe', 'as good as dhe')} times a mix of "
        "paths. Nodes fixed for the peak cost "
        f"{_over(ways, 'only table, peak', 'only table')} times nodes by the hour with tables alone, and "
        f"{_over(ways, 'peak', 'plan over the day')} times with a mix."
    )


def _read(ways: dict[str, Any]) -> str:
    """Summarizes the table in words, with figures."""
    return (
        "A mix uses the best path for the GPU's time, and cheap ones on the CPUs that come with it. The "
        f"accuracy required of `plan` costs {_over(ways, 'plan', 'cheapest')} times the cheapest fleet, and "
        f"DHE alone {_over(ways, 'only dhe', 'plan')} times `plan`. With DHE alone, nodes fixed for the peak "
        f"cost {_over(ways, 'only dhe, peak', 'only dhe')} times nodes by the hour. With a mix they cost "
        "little more, because nodes that are idle at night answer on better paths then, so that the mean of "
        "the day needs fewer at the peak."
    )


def _way(name: str, one: dict[str, Any], plan: dict[str, Any]) -> list[str]:
    total = np.sum(list(one["nodes_by_type"].values()), axis=0)
    served = min(m["served"] for m in one["models"])
    return [
        name,
        f"{one['cost']:,.0f}",
        f"{one['cost'] / plan['cost']:.2f}",
        f"{one['cost_per_million']:.5f}",
        f"{int(total.max()):,}, {int(total.min()):,}",
        *(f"{m['quality']:.5f}" for m in one["models"]),
        percent(served),
        f"{one['gap']:.1e}",
        f"{one['seconds']:.1f}",
    ]


def _by_hour(found: dict[str, Any]) -> list[str]:
    plan, peak = found["ways"]["plan"], found["ways"]["peak"]
    types = list(plan["nodes_by_type"])
    rows = []
    for h in range(plan["hours"]):
        rows.append(
            [f"{h}", f"{sum(r[h] for r in found['rates'].values()):,}"]
            + [f"{plan['nodes_by_type'][t][h]:,}" for t in types]
            + [f"{plan['cost_by_hour'][h]:,.0f}", f"{peak['cost_by_hour'][h]:,.0f}"]
            + [f"{one['models'][m]['quality_by_hour'][h]:.5f}" for one in (plan, peak) for m in (0, 1)]
        )
    names = [m["name"] for m in plan["models"]]
    return markdown_table(
        ["hour", "requests/s", *types, "plan $/h", "peak $/h"]
        + [f"{way}: {name}" for way in ("plan", "peak") for name in names],
        rows,
    )


def _what_ifs(ways: dict[str, Any], models: Sequence[str]) -> Iterable[list[str]]:
    cases = {way: {w["what"]: w for w in ways[way]["what_if"]} for way in SHOWN}
    for what in dict.fromkeys(name for way in SHOWN for name in cases[way]):
        cells = [what]
        for way in SHOWN:
            w = cases[way].get(what)
            cells += [
                ""
                if w is None
                else f"{percent(w['served'][m])} ({percent(w['worst_hour'][m])}), {w['quality'][m]:.5f}"
                for m in models
            ]
        yield cells


def _charts(found: dict[str, Any]) -> list[Chart]:
    ways = found["ways"]
    plan, peak = ways["plan"], ways["peak"]
    hours = np.arange(plan["hours"], dtype=np.float64)

    def lines(values: dict[str, Sequence[float]]) -> tuple[Series, ...]:
        return tuple(Series(n, hours, np.array(y, np.float64), i) for i, (n, y) in enumerate(values.items()))

    cost = {
        "plan": plan["cost_by_hour"],
        "plan, peak nodes": peak["cost_by_hour"],
        "only DHE": ways["only dhe"]["cost_by_hour"],
        "only DHE, peak nodes": ways["only dhe, peak"]["cost_by_hour"],
        "only table": ways["only table"]["cost_by_hour"],
    }
    quality = {
        "plan": plan["models"][0]["quality_by_hour"],
        "plan, peak nodes": peak["models"][0]["quality_by_hour"],
        "only DHE": ways["only dhe"]["models"][0]["quality_by_hour"],
        "only table": ways["only table"]["models"][0]["quality_by_hour"],
    }
    return [
        Chart("Requests", "", "hour", "requests/s", lines(found["rates"]), kind="layers"),
        Chart("Nodes of the plan", "", "hour", "nodes", lines(plan["nodes_by_type"]), kind="layers"),
        Chart("Cost", "", "hour", "$ an hour", lines(cost)),
        Chart("Accuracy, kaggle", "", "hour", "mean of answered rows", lines(quality), from_zero=False),
    ]
