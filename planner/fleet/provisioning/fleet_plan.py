"""Creates a fleet plan: nodes, paths and cost by hour, shadow prices, and effects of faults on the SLO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from polyrec.models.schema.batch import F64
from polyrec.planner.fleet.provisioning.capability import FleetProblem, Profiles, build_fleet_problem
from polyrec.planner.fleet.provisioning.columns import SolvedFleet, solve_fleet
from polyrec.planner.fleet.provisioning.description import Fleet
from polyrec.planner.fleet.provisioning.program import HOUR_S, Configuration, FleetProgram, Solved

SURGE = 2.0


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes of one type with the same paths.

    nodes: at each hour. paths: `model/path` -> share of the rows that the group answers over the day.
    """

    type: str
    nodes: tuple[int, ...]
    paths: dict[str, float]


@dataclass(frozen=True, slots=True)
class ModelForecast:
    """One model over the day and by hour. served: share of rows in time. quality: their mean quality."""

    name: str
    served: float
    quality: float
    served_by_hour: tuple[float, ...]
    quality_by_hour: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class NodeWorth:
    """Shadow price of a node type in dollars per hour: what another node would save, before its own price.

    worth: mean over the day. at_most: in the hour in which it is highest. A type worth less than it costs is
    not rented; one worth more is limited by its `most`.
    """

    type: str
    price: float
    worth: float
    at_most: float


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The same nodes under another load or after a loss: share of rows in time and mean quality, by model."""

    what: str
    served: dict[str, float]
    worst_hour: dict[str, float]
    quality: dict[str, float]


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """A plan in dollars for all hours.

    spare: share of the expected rate for which the plan provides on top of it. models: at the rate with
    spare. cost_per_million, what_if: at the expected rate; the cost is 0 if nothing is answered. gap: share
    of the cost that a fleet as good could save at most.
    """

    hours: int
    groups: tuple[NodeGroup, ...]
    cost_by_hour: tuple[float, ...]
    cost: float
    cost_per_million: float
    models: tuple[ModelForecast, ...]
    worth: tuple[NodeWorth, ...]
    what_if: tuple[WhatIf, ...]
    gap: float
    proven: bool
    spare: float = 0.0

    @property
    def nodes_by_type(self) -> dict[str, tuple[int, ...]]:
        """Nodes of each rented type at each hour."""
        found: dict[str, tuple[int, ...]] = {}
        for group in self.groups:
            known = found.get(group.type, (0,) * self.hours)
            found[group.type] = tuple(a + b for a, b in zip(known, group.nodes, strict=True))
        return found

    def as_dict(self) -> dict[str, Any]:
        """Returns the plan as JSON."""
        return {"nodes_by_type": self.nodes_by_type, **asdict(self)}


def plan_fleet(fleet: Fleet, profiles: Profiles) -> FleetPlan:
    """Returns the cheapest fleet. profiles: by model and node type (`load_profiles`). Raises FleetError."""
    return make_fleet_plan(build_fleet_problem(fleet, profiles))


def make_fleet_plan(problem: FleetProblem) -> FleetPlan:
    """Returns the cheapest fleet of a problem, and its behavior under other loads and losses."""
    found = solve_fleet(problem)
    solved, configurations = found.solved, found.configurations
    by_hour = [_hour_dollars(problem, configurations, solved.nodes, h) for h in range(problem.hours)]
    models = _forecasts(problem, configurations, solved)
    predictions = _predictions(problem, solved)
    return FleetPlan(
        hours=problem.hours,
        groups=_groups(problem, configurations, solved),
        cost_by_hour=tuple(by_hour),
        cost=found.cost,
        cost_per_million=found.cost / predictions * 1e6 if predictions else 0.0,
        models=models,
        worth=tuple(
            NodeWorth(offer.name, offer.price, float(worth.mean()), float(worth.max()))
            for offer, worth in zip(problem.offers, found.worth, strict=True)
        ),
        what_if=what_ifs(problem, found),
        gap=found.gap,
        proven=found.proven,
        spare=problem.spare,
    )


def _predictions(problem: FleetProblem, solved: Solved) -> float:
    """Returns the rows that are answered over all hours at the expected rate, without spare."""
    total = 0.0
    for demand, unserved in zip(problem.demands, solved.unserved, strict=True):
        answered = demand.rows @ (demand.queries - unserved)
        total += float(np.minimum(answered, demand.rows @ demand.queries / (1 + problem.spare)).sum())
    return total * HOUR_S


def what_ifs(problem: FleetProblem, found: SolvedFleet) -> tuple[WhatIf, ...]:
    """Returns the results of the rented nodes under a surge, and after losing spot nodes or one node."""
    nodes = found.solved.nodes
    cases: list[tuple[str, F64, float]] = [(f"{SURGE:g} times the rate", nodes, SURGE)]
    for t, offer in enumerate(problem.offers):
        of_offer = [k for k, one in enumerate(found.configurations) if one.offer == t]
        if offer.spot_loss and nodes[of_offer].any():
            left = nodes.copy()
            for h in range(problem.hours):
                left[of_offer, h] = nodes_left(nodes[of_offer, h], offer.spot_loss)
            cases.append((f"{100 * offer.spot_loss:g}% of {offer.name} lost", left, 1.0))
        elif nodes[of_offer].any():
            left = nodes.copy()
            for h in range(problem.hours):
                largest = max(of_offer, key=lambda k, h=h: float(left[k, h]))  # type: ignore[misc]
                left[largest, h] = max(left[largest, h] - 1, 0)
            cases.append((f"one {offer.name} lost", left, 1.0))
    return tuple(_what_if(problem, found.configurations, *case) for case in cases)


def nodes_left(nodes: F64, loss: float) -> F64:
    """Returns the nodes of each configuration once a share of a type's nodes, rounded up, is lost evenly."""
    total = float(nodes.sum())
    exact = nodes * (np.floor(total * (1 - loss) + 1e-9) / max(total, 1.0))
    left: F64 = np.floor(exact + 1e-9)
    missing = round(float((exact - left).sum()))
    left[np.argsort(left - exact, kind="stable")[:missing]] += 1
    return left


def _what_if(
    problem: FleetProblem, configurations: tuple[Configuration, ...], what: str, nodes: F64, factor: float
) -> WhatIf:
    """Divides `factor` times the expected rate over given nodes: first the rows in time, then their worth."""
    factor /= 1 + problem.spare
    # the nodes are fixed, so any positive weight of information gives the best division
    demands = tuple(replace(d, queries=d.queries * factor, weight=d.weight or 1.0) for d in problem.demands)
    changed = replace(problem, demands=demands)
    models = _forecasts(
        changed, configurations, FleetProgram(changed, configurations, nodes, asked=False).relax()
    )
    return WhatIf(
        what,
        {m.name: m.served for m in models},
        {m.name: min(m.served_by_hour) for m in models},
        {m.name: m.quality for m in models},
    )


def _forecasts(
    problem: FleetProblem, configurations: Sequence[Configuration], solved: Solved
) -> tuple[ModelForecast, ...]:
    served = [np.zeros(problem.hours) for _ in problem.demands]
    quality = [np.zeros(problem.hours) for _ in problem.demands]
    for k, i, c, h, rate in solved.answered:
        r = problem.offers[configurations[k].offer].runnables[i]
        rows = rate * float(problem.demands[r.model].rows[c])
        served[r.model][h] += rows
        quality[r.model][h] += rows * r.quality
    found = []
    for m, demand in enumerate(problem.demands):
        asked = (demand.rows[:, None] * demand.queries).sum(axis=0)
        share = np.where(asked > 0, np.minimum(served[m] / np.maximum(asked, 1e-300), 1.0), 1.0)
        mean = np.where(served[m] > 0, quality[m] / np.maximum(served[m], 1e-300), 0.0)
        total, answered = float(asked.sum()), float(served[m].sum())
        found.append(
            ModelForecast(
                demand.name,
                min(answered / total, 1.0) if total else 1.0,
                float(quality[m].sum()) / answered if answered else 0.0,
                tuple(share.tolist()),
                tuple(mean.tolist()),
            )
        )
    return tuple(found)


def _groups(
    problem: FleetProblem, configurations: Sequence[Configuration], solved: Solved
) -> tuple[NodeGroup, ...]:
    rows: dict[int, dict[str, float]] = {}
    for k, i, c, _, rate in solved.answered:
        r = problem.offers[configurations[k].offer].runnables[i]
        demand = problem.demands[r.model]
        own, name = rows.setdefault(k, {}), f"{demand.name}/{r.name}"
        own[name] = own.get(name, 0.0) + rate * float(demand.rows[c])
    found = []
    for k, one in enumerate(configurations):
        counts = tuple(round(n) for n in solved.nodes[k].tolist())
        if any(counts):
            total = sum(rows.get(k, {}).values())
            shares = sorted(rows.get(k, {}).items(), key=lambda item: -item[1])
            found.append(
                NodeGroup(
                    problem.offers[one.offer].name,
                    counts,
                    {name: value / total for name, value in shares if value > 1e-4 * total},
                )
            )
    return tuple(found)


def _hour_dollars(
    problem: FleetProblem, configurations: Sequence[Configuration], nodes: F64, h: int
) -> float:
    total = 0.0
    for t, offer in enumerate(problem.offers):
        of_offer = [k for k, one in enumerate(configurations) if one.offer == t]
        counts = nodes[of_offer].sum(axis=0)
        total += offer.price * float(counts.max() if offer.daily else counts[h]) if of_offer else 0.0
    return total
