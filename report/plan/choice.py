"""Which path answers a query of so many rows within so much time: idle, and at the plan's traffic.

Idle, the most accurate path that is fast enough wins. At the stated traffic a device's time has a price
(the dual of the plan's program), so a cheaper path wins where it gives more correct predictions for it.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from polyrec.models.amounts import percent
from polyrec.models.schema.batch import F64
from polyrec.planner.deployment.explain import traffic_words
from polyrec.planner.deployment.option import Option
from polyrec.planner.deployment.proposal import Proposal
from polyrec.planner.deployment.solver.problem import Problem
from polyrec.report.comparison.axes import FONT, LIGHT
from polyrec.report.plan.paper import colour, figure, log_axis, plain, png

ROWS = np.unique(np.geomspace(1, 4096, 160).round())
BUDGETS_MS = np.geomspace(0.5, 200, 160)
NOBODY = "#e4e7eb"


def draw(proposal: Proposal) -> bytes:
    """The picture, as the bytes of a PNG."""
    problem, plan = proposal.problem, proposal.plan
    options = [problem.options[i] for i in proposal.choice.options]
    paths = [problem.paths[o.path] for o in options]
    order = np.argsort([-p.accuracy for p in paths], kind="stable").tolist()
    made = figure(10.5, 5.2)
    for axes, (title, chosen) in zip(
        made.subplots(1, 2, sharey=True),
        (("Idle: the most accurate path that is fast enough", idle(problem, options)),
         ("At the stated traffic: correct predictions less the price of time", loaded(proposal, options))),
        strict=True,
    ):  # fmt: skip
        _panel(axes, title, chosen, len(options), problem)
    made.axes[0].set_ylabel("latency budget, ms", size=FONT, color=LIGHT.text)
    served = {e.path: e.share for e in plan.expected.paths} if plan.expected else {}
    handles = []
    for k in order:
        name, share = paths[k].path.name, served.get(paths[k].path.name, 0.0)
        words = f"{percent(share)} of the rows" if share else "in reserve"
        handles.append(Patch(color=colour(k), label=f"{name}, accuracy {paths[k].accuracy:.5f}, {words}"))
    handles.append(Patch(color=NOBODY, label="no path is fast enough, or worth its time: refused"))
    made.legend(handles=handles, loc="outside lower left", ncols=2, fontsize=FONT - 1, frameon=False)
    made.suptitle(
        f"Which path answers a query; planned for {traffic_words(problem.ask.traffic)} within "
        f"{1e3 * problem.ask.slo_s:g} ms",
        size=FONT + 1, x=0.01, ha="left", color=LIGHT.text,
    )  # fmt: skip
    return png(made)


def idle(problem: Problem, options: list[Option]) -> F64:
    """[budgets, rows]: the most accurate option whose tail, with the front, is within the budget; NaN for
    none. Of equally accurate ones the faster."""
    value = [np.full((BUDGETS_MS.size, ROWS.size), problem.paths[o.path].accuracy) for o in options]
    tails = [np.array([o.timing.tail(r) for r in ROWS]) for o in options]
    value = [v - 1e-9 * tail for v, tail in zip(value, tails, strict=True)]
    return _best(problem, value, tails)


def loaded(proposal: Proposal, options: list[Option]) -> F64:
    """[budgets, rows]: the option that gives most correct predictions, less the price of the device's and
    the front's time, and leaves a wait for a lane within the budget; NaN where none is worth it."""
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
            ROWS * (p.accuracy - price * per_row - front_price * front) * np.ones((BUDGETS_MS.size, 1))
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
    plain(axes, grid=False)
    axes.set_title(title, size=FONT, loc="left", color=LIGHT.text)
    colours = ListedColormap([colour(k) for k in range(max(n, 1))]).with_extremes(bad=NOBODY)
    axes.pcolormesh(
        ROWS, BUDGETS_MS, np.ma.masked_invalid(chosen), cmap=colours, vmin=-0.5, vmax=max(n, 1) - 0.5,
        shading="nearest", rasterized=True,
    )  # fmt: skip
    log_axis(axes, "x", 1, 4096)
    log_axis(axes, "y", BUDGETS_MS[0], BUDGETS_MS[-1])
    axes.set_xlabel("rows of the query", size=FONT, color=LIGHT.text)
    promise = 1e3 * problem.ask.slo_s
    low, high = problem.classes[0].rows, problem.classes[-1].largest
    axes.axhline(promise, color="white", linewidth=1.2, linestyle=(0, (4, 3)))
    axes.plot([low, high], [promise] * 2, color="white", linewidth=4, solid_capstyle="round")
    axes.annotate(
        "the traffic, at the promise", (max(low, 1.1), promise), (0, 6), textcoords="offset points",
        color="white", size=FONT - 1.5,
    )  # fmt: skip
