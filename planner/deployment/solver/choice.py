"""The choice: which paths to deploy with how many rows resident, and how load is shared between them.

A `Problem` in, a `Choice` out, by a mixed-integer program (HiGHS). One binary variable says whether an
option is deployed; one continuous variable says which part of the queries of a size class, at a level of
load, goes to it. The program maximizes correct predictions a second, under the time of every device and
of the front, and the bytes of every memory. A second, purely linear program with the deployment held
gives the duals. What memory is left then takes paths in reserve, for when the load rises or falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from polyrec.models.schema.batch import F64
from polyrec.planner.deployment.occupancy import occupied
from polyrec.planner.deployment.option import Option
from polyrec.planner.deployment.solver.problem import Problem
from polyrec.planner.deployment.solver.program import PlanImpossible, Program, weights_of
from polyrec.planner.deployment.traffic_classes import Level

TIME_LIMIT_S = 20.0
NOTHING = 1e-7
"""Shares below this are the solver's rounding."""
ROUNDING = 1e-9
WORTH = 1e-5
"""Relative gain for which a path is kept in reserve."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What is deployed, and how the load is shared.

    options: deployed ones, as indices into the problem's, those in reserve last. served: float64
    [deployed, classes, levels], share of `Problem.queries` that each answers. correct,
    rows: a second. prices: correct predictions a second by one more lane's time, by device. gap:
    relative, to the best that the solver could not exclude.
    """

    options: tuple[int, ...]
    served: F64
    correct: float
    rows: float
    prices: dict[str, float]
    front_price: float
    gap: float


def choose(problem: Problem, time_limit_s: float = TIME_LIMIT_S) -> Choice:
    """The best deployment. Raises PlanImpossible if no option fits its memory."""
    candidates = worth_trying(problem)
    if not candidates:
        raise PlanImpossible("no path fits the memory given; give it more (--memory DEVICE=SIZE)")
    found = Program(problem, candidates).solve(time_limit_s)
    deployed = list(found.deployed)
    served, _, _ = Program(problem, deployed).share_out()
    # what the solver deployed to no use
    deployed = [o for o, share in zip(deployed, served, strict=True) if share.max() > NOTHING]
    return shared(problem, deployed, found.gap)


def shared(problem: Problem, deployed: list[int], gap: float) -> Choice:
    """The best use of a deployment: options, as indices into the problem's."""
    served, prices, front_price = Program(problem, deployed).share_out()
    weights, _ = weights_of(problem)
    rows = (served * weights).sum(axis=(1, 2))
    accuracy = [problem.paths[problem.options[o].path].accuracy for o in deployed]
    return Choice(
        tuple(deployed), served, float(np.dot(rows, accuracy)), float(rows.sum()), prices, front_price, gap
    )


def with_reserve(problem: Problem, choice: Choice) -> Choice:
    """The choice with further paths, all their rows resident, in the memory that is left: cheaper ones for
    `swing` times the stated load, and more accurate ones for as many times less."""
    deployed = list(choice.options)
    for factor in (problem.ask.swing, 1 / problem.ask.swing):
        levels = tuple(Level(level.rate * factor, level.share) for level in problem.levels)
        _add_reserve(replace(problem, levels=levels), deployed)
    none = np.zeros((len(deployed) - len(choice.options), *choice.served.shape[1:]))
    return replace(choice, options=tuple(deployed), served=np.concatenate((choice.served, none)))


def _add_reserve(problem: Problem, deployed: list[int]) -> None:
    """At each step the path that adds most correct predictions, until none fits or adds any."""
    best = shared(problem, deployed, 0.0).correct
    while True:
        paths = {problem.options[i].path for i in deployed}
        tried = [
            (shared(problem, [*deployed, i], 0.0).correct, -i)
            for i, o in enumerate(problem.options)
            if o.tier is None and o.path not in paths and fits(problem, [*deployed, i])
        ]
        correct, least = max(tried, default=(0.0, 0))
        if correct <= best * (1 + WORTH):
            return
        best = correct
        deployed.append(-least)


def fits(problem: Problem, which: Sequence[int]) -> bool:
    """Whether options fit their memories together."""
    used = occupied(problem, [problem.options[i] for i in which])
    return all(
        (budget := problem.budget.get(where)) is None or use.bytes <= budget * (1 + ROUNDING)
        for where, use in used.items()
    )


def without(problem: Problem, place: str) -> Problem:
    """The problem with unlimited bytes in one memory."""
    return replace(problem, budget={**problem.budget, place: None})


def timeless(problem: Problem, device: str) -> Problem:
    """The problem with unlimited time of one device, or of the `front`."""
    if device == "front":
        return replace(problem, front_capacity=None, inline=None)
    return replace(problem, capacity={**problem.capacity, device: None})


def worth_trying(problem: Problem) -> list[int]:
    """Options that fit alone; without partly resident ones on devices that hold all rows of all paths."""
    full: dict[str, float] = {}
    for option in problem.options:
        if option.tier is None:
            for place, needed in problem.needs(option).items():
                full[place] = full.get(place, 0.0) + needed
    roomy = {p for p, budget in problem.budget.items() if budget is None or full.get(p, 0.0) <= budget}

    def kept(option: Option) -> bool:
        return option.tier is None or problem.paths[option.path].path.device not in roomy

    return [i for i, o in enumerate(problem.options) if kept(o) and problem.fits_alone(o) is None]
