"""Chooses which paths to deploy, how many of their rows are resident, and how they share the load.

`choose` turns a `Problem` into a `Choice` by a mixed-integer program (HiGHS). It has a binary variable per
deployed option, and a continuous variable for the share of a size class's queries that an option answers at a
load level. It maximizes the value of answered rows per second, subject to the time of every device and of the
front and to the bytes of every memory. A linear program with the deployment fixed then gives the dual prices.
Spare memory is filled with reserve paths for other loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from polyrec.models.schema.batch import F64
from polyrec.planner.deployment.occupancy import memory_occupancy
from polyrec.planner.deployment.option import Option
from polyrec.planner.deployment.solver.problem import Problem
from polyrec.planner.deployment.solver.program import PlanImpossible, Program, weights_of
from polyrec.planner.deployment.traffic_classes import Level

TIME_LIMIT_S = 20.0
NOTHING = 1e-7
"""Shares below this are solver rounding."""
ROUNDING = 1e-9
WORTH = 1e-5
"""Relative gain for which a path is kept in reserve."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A deployment and its shares of the load.

    options: deployed options, as indices into the problem's; reserve paths last.
    served: float64 [deployed, classes, levels], share of `Problem.queries` that each answers.
    value, rows: value and rows per second.
    prices: by device, marginal value per second and lane (the dual of its time).
    gap: relative distance to the best value that the solver could not exclude.
    """

    options: tuple[int, ...]
    served: F64
    value: float
    rows: float
    prices: dict[str, float]
    front_price: float
    gap: float


def choose(problem: Problem, time_limit_s: float = TIME_LIMIT_S) -> Choice:
    """Returns the best deployment. Raises PlanImpossible if no option fits its memory."""
    candidates = candidate_options(problem)
    if not candidates:
        raise PlanImpossible("no path fits the memory given; give it more (--memory DEVICE=SIZE)")
    found = Program(problem, candidates).solve(time_limit_s)
    deployed = list(found.deployed)
    served, _, _ = Program(problem, deployed).solve_shares()
    # drop options that the solver deployed but does not use
    deployed = [o for o, share in zip(deployed, served, strict=True) if share.max() > NOTHING]
    return share_load(problem, deployed, found.gap)


def share_load(problem: Problem, deployed: list[int], gap: float) -> Choice:
    """Returns the best division of the load among options, given as indices into the problem's."""
    served, prices, front_price = Program(problem, deployed).solve_shares()
    weights, _ = weights_of(problem)
    rows = (served * weights).sum(axis=(1, 2))
    values = [problem.values[problem.options[o].path] for o in deployed]
    return Choice(
        tuple(deployed), served, float(np.dot(rows, values)), float(rows.sum()), prices, front_price, gap
    )


def add_reserve(problem: Problem, choice: Choice) -> Choice:
    """Adds reserve paths, with all rows resident, in spare memory.

    They are cheaper paths for `swing` times the stated load, and better ones for that load divided by
    `swing`.
    """
    deployed = list(choice.options)
    for factor in (problem.requirements.swing, 1 / problem.requirements.swing):
        levels = tuple(Level(level.rate * factor, level.share) for level in problem.levels)
        _add_reserve(replace(problem, levels=levels), deployed)
    none = np.zeros((len(deployed) - len(choice.options), *choice.served.shape[1:]))
    return replace(choice, options=tuple(deployed), served=np.concatenate((choice.served, none)))


def _add_reserve(problem: Problem, deployed: list[int]) -> None:
    """Adds, one at a time, the path that gains most value, until none fits or gains."""
    best = share_load(problem, deployed, 0.0).value
    while True:
        paths = {problem.options[i].path for i in deployed}
        tried = [
            (share_load(problem, [*deployed, i], 0.0).value, -i)
            for i, o in enumerate(problem.options)
            if o.tier is None and o.path not in paths and fits(problem, [*deployed, i])
        ]
        value, least = max(tried, default=(0.0, 0))
        if value <= best * (1 + WORTH):
            return
        best = value
        deployed.append(-least)


def fits(problem: Problem, which: Sequence[int]) -> bool:
    """Returns whether options fit their memories together."""
    used = memory_occupancy(problem, [problem.options[i] for i in which])
    return all(
        (budget := problem.budget.get(where)) is None or use.bytes <= budget * (1 + ROUNDING)
        for where, use in used.items()
    )


def without_memory_limit(problem: Problem, place: str) -> Problem:
    """Returns the problem with unlimited bytes in one memory."""
    return replace(problem, budget={**problem.budget, place: None})


def without_time_limit(problem: Problem, device: str) -> Problem:
    """Returns the problem with unlimited time of one device or of the `front`."""
    if device == "front":
        return replace(problem, front_capacity=None, inline=None)
    return replace(problem, capacity={**problem.capacity, device: None})


def candidate_options(problem: Problem) -> list[int]:
    """Returns options that fit alone; partly resident ones only for devices that cannot hold all rows."""
    full: dict[str, float] = {}
    for option in problem.options:
        if option.tier is None:
            for place, needed in problem.needs(option).items():
                full[place] = full.get(place, 0.0) + needed
    roomy = {p for p, budget in problem.budget.items() if budget is None or full.get(p, 0.0) <= budget}

    def kept(option: Option) -> bool:
        return option.tier is None or problem.paths[option.path].path.device not in roomy

    return [i for i, o in enumerate(problem.options) if kept(o) and problem.fits_alone(o) is None]
