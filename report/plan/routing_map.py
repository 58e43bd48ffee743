"""Draws the map of routing: which path answers a query, by rows and budget, idle and at the plan's traffic.

Idle, the most accurate path that is fast enough wins. At the stated traffic, a device's time has a price (the
dual of the plan's program), so a cheaper path wins where it yields more information for it.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from polyrec.models.amounts import percent
from polyrec.models.schema.batch import F64
from polyrec.planner.deployment.explain import describe_traffic
from polyrec.planner.deployment.option import Option
from polyrec.planner.deployment.proposal import Proposal
from polyrec.planner.deployment.solver.problem import Problem
from polyrec.report.chart import FONT, LIGHT, add_legend, log_axis, new_figure, style_axes

ROWS = np.unique(np.geomspace(1, 4096, 160).round())
BUDGETS_MS = np.geomspace(0.5, 200, 160)
NO_PATH = "#e4e7eb"


def draw(proposal: Proposal) -> Figure:
    """Draws the map of a proposal's paths."""
    problem, plan = proposal.problem, proposal.plan
    options = [problem.options[i] for i in proposal.choice.options]
    paths = [problem.paths[o.path] for o in options]
    figure = new_figure(
        10.5, 5.2,
        title="Which path answers a query; planned for "
        f"{describe_traffic(problem.requirements.traffic)} within {1e3 * problem.requirements.slo_s:g} ms",
    )  # fmt: skip
    left, right = figure.subplots(1, 2, sharey=True)
    _panel(left, "Idle: the best path that is fast enough", idle(problem, options), len(paths), problem)
    title = "At the stated traffic: information less the price of time"
    _panel(right, title, loaded(proposal, options), len(paths), problem)
    left.set_ylabel("latency budget, ms", size=FONT, color=LIGHT.text)
    served = {e.path: e.share for e in plan.expected.paths} if plan.expected else {}
    handles = []
    for k in np.argsort([-p.quality for p in paths], kind="stable").tolist():
        name, share = paths[k].path.name, served.get(paths[k].path.name, 0.0)
        use = f"{percent(share)} of the rows" if share else "in reserve"
        handles.append(Patch(color=LIGHT.color(k), label=f"{name}, quality {paths[k].quality:.5f}, {use}"))
    handles.append(Patch(color=NO_PATH, label="no path is fast enough, or worth its time: rejected"))
    add_legend(figure, handles=handles, loc="outside lower left", ncols=2)
    return figure


def idle(problem: Problem, options: list[Option]) -> F64:
    """Returns the most valuable option whose tail, including the front, is within the budget, [budgets,
    rows].

    NaN if there is none. Ties go to the faster option.
    """
    value = [np.full((BUDGETS_MS.size, ROWS.size), problem.values[o.path]) for o in options]
    tails = [np.array([o.timing.tail(r) for r in ROWS]) for o in options]
    value = [v - 1e-9 * tail for v, tail in zip(value, tails, strict=True)]
    return _best(problem, value, tails)


def loaded(proposal: Proposal, options: list[Option]) -> F64:
    """Returns the option with the most value less the price of the device's and the front's time, [budgets,
    rows].

    The option must leave time to wait for a lane within the budget. NaN if no option is worth its price.
    """
    problem, choice = proposal.problem, proposal.choice
    value, times = [], []
    for o in options:
        p = problem.paths[o.path]
        kept = np.flatnonzero(np.isfinite(o.cost_s))
        per_row = np.interp(ROWS, problem.rows[kept], o.cost_s[kept] / problem.rows[kept])
        price = choice.prices.get(p.path.device, 0.0)
        front_price = choice.prices.get(problem.inline, 0.0) if problem.inline else choice.front_price
        front = np.interp(ROWS, problem.rows, problem.front_s / problem.rows)
        value.append(
            ROWS
            * (problem.values[o.path] - price * per_row - front_price * front)
            * np.ones((BUDGETS_MS.size, 1))
        )
        share = problem.lanes[p.path.device].share
        times.append(np.array([o.timing.tail(r) for r in ROWS]) / share)
    return _best(problem, value, times, floor=-1e-6)


def _best(problem: Problem, value: list[F64], seconds: list[F64], floor: float = -np.inf) -> F64:
    front = problem.front.query_s + problem.front.row_s * ROWS
    stacked = np.stack(
        [
            np.where(BUDGETS_MS[:, None] / 1e3 >= s + front, np.where(v >= floor, v, -np.inf), -np.inf)
            for v, s in zip(value, seconds, strict=True)
        ]
    )
    best: F64 = stacked.argmax(axis=0).astype(np.float64)
    best[~np.isfinite(stacked.max(axis=0))] = np.nan
    return best


def _panel(axes: Axes, title: str, chosen: F64, n: int, problem: Problem) -> None:
    style_axes(axes, title=title, x="rows of the query", grid=False)
    colors = ListedColormap([LIGHT.color(k) for k in range(max(n, 1))]).with_extremes(bad=NO_PATH)
    axes.pcolormesh(
        ROWS, BUDGETS_MS, np.ma.masked_invalid(chosen), cmap=colors, vmin=-0.5, vmax=max(n, 1) - 0.5,
        shading="nearest", rasterized=True,
    )  # fmt: skip
    log_axis(axes, "x", 1, 4096)
    log_axis(axes, "y", BUDGETS_MS[0], BUDGETS_MS[-1])
    slo_ms = 1e3 * problem.requirements.slo_s
    low, high = problem.classes[0].rows, problem.classes[-1].largest
    axes.axhline(slo_ms, color="white", linewidth=1.2, linestyle=(0, (4, 3)))
    axes.plot([low, high], [slo_ms] * 2, color="white", linewidth=4, solid_capstyle="round")
    axes.annotate(
        "the traffic, at the SLO", (max(low, 1.1), slo_ms), (0, 6), textcoords="offset points",
        color="white", size=FONT - 1.5,
    )  # fmt: skip
