"""Solves the fleet's program by column generation over configurations, followed by rounding to whole nodes.

The relaxation over the known configurations yields prices of queries. The best node of each type at each
hour's prices is added if it is worth more than it costs. If there is none, the relaxation is a lower bound
over all configurations. Whole nodes come from a mixed-integer program over the configurations found, one hour
at a time if nothing couples the hours, or from rounding up if that program reaches its time limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from polyrec.models.schema.batch import F64
from polyrec.planner.fleet.provisioning.capability import FleetProblem
from polyrec.planner.fleet.provisioning.configuration import BestNode, best_node, starting_paths
from polyrec.planner.fleet.provisioning.program import Configuration, FleetProgram, Solved, hourly_worth

ROUNDS = 30
TOLERANCE = 1e-7
WHOLE = 1e-6
FEW = 200
"""Configurations times hours up to which the whole-node program includes all configurations."""


@dataclass(frozen=True, slots=True)
class SolvedFleet:
    """Whole nodes and their load, in dollars for all hours.

    cost: of the nodes. worth: by type, [hours], dollars per hour that another node would save, at the
    relaxation's prices. bound: lower bound of `solved.dollars` of any fleet. proven: whether column
    generation converged.
    """

    configurations: tuple[Configuration, ...]
    solved: Solved
    cost: float
    worth: tuple[F64, ...]
    bound: float
    proven: bool

    @property
    def gap(self) -> float:
        """Share of the nodes' cost that a fleet as good could save at most."""
        excess = max(self.solved.dollars - self.bound, 0.0)
        return min(excess / self.cost, 1.0) if self.cost else 0.0


def solve_fleet(problem: FleetProblem) -> SolvedFleet:
    """Returns the cheapest fleet that serves what can be served."""
    configurations = [
        Configuration(t, paths) for t, offer in enumerate(problem.offers) for paths in starting_paths(offer)
    ]
    proven = False
    for _ in range(ROUNDS):
        relaxed = FleetProgram(problem, configurations).relax()
        nodes = _best_nodes(problem, relaxed)
        known = set(configurations)
        added = [
            one
            for (t, h), best in nodes.items()
            if best.value > relaxed.node_price[t][h] * (1 + TOLERANCE) + TOLERANCE
            and (one := Configuration(t, best.paths)) not in known
        ]
        configurations += dict.fromkeys(added)
        if not added:
            proven = True
            break
    worth = tuple(
        np.array([nodes[t, h].value for h in range(problem.hours)]) for t in range(len(problem.offers))
    )
    used = relaxed.nodes.max(axis=1) > WHOLE
    # with many configurations, the whole-node program only has those in use
    chosen = configurations
    if len(configurations) * problem.hours > FEW:
        pairs = zip(configurations, used, strict=True)
        chosen = [one for one, in_use in pairs if in_use or not _has_used(configurations, used, one)]
    solved = _whole_nodes(problem, chosen)
    solved = replace(solved, nodes=_with_idle(problem, chosen, solved.nodes))
    cost = node_dollars(problem, chosen, solved.nodes)
    return SolvedFleet(tuple(chosen), solved, cost, worth, relaxed.dollars, proven)


def _has_used(configurations: Sequence[Configuration], used: F64, one: Configuration) -> bool:
    """Returns whether the relaxation uses another configuration of the type."""
    pairs = zip(configurations, used, strict=True)
    return any(bool(in_use) and other.offer == one.offer for other, in_use in pairs)


def _best_nodes(problem: FleetProblem, relaxed: Solved) -> dict[tuple[int, int], BestNode]:
    """Returns the best node of every type at every hour's prices."""
    found: dict[tuple[int, int], BestNode] = {}
    for t, offer in enumerate(problem.offers):
        solved: dict[bytes, BestNode] = {}
        for h in range(problem.hours):
            worth = []
            for r in offer.runnables:
                demand = problem.demands[r.model]
                earned = hourly_worth(demand.weight, r.value) * demand.rows
                above = 0.0 if demand.quality is None else r.value - demand.quality
                quality = relaxed.row_quality_price[r.model][h] * above * demand.rows
                asked = demand.queries[:, h] > 0  # what is not asked for earns nothing either
                worth.append((relaxed.query_price[r.model][:, h] + earned + quality) * asked)
            key = np.concatenate([np.round(w, 12) for w in worth]).tobytes() if worth else b""
            if key not in solved:
                solved[key] = best_node(offer, worth)
            found[t, h] = solved[key]
    return found


def _whole_nodes(problem: FleetProblem, configurations: Sequence[Configuration]) -> Solved:
    if any(o.daily for o in problem.offers) or any(
        d.quality is not None and not d.hourly for d in problem.demands
    ):
        return _solve_or_round(problem, configurations)
    return _joined([_solve_or_round(hour_of(problem, h), configurations) for h in range(problem.hours)])


def _solve_or_round(problem: FleetProblem, configurations: Sequence[Configuration]) -> Solved:
    program = FleetProgram(problem, configurations)
    solved = program.solve()
    if solved is None:
        relaxed = program.relax()
        up = np.ceil(relaxed.nodes - WHOLE)
        for t, offer in enumerate(problem.offers):
            of_offer = [k for k, one in enumerate(configurations) if one.offer == t]
            for h in range(problem.hours):
                _limit_to(up[:, h], of_offer, offer.most)
        solved = FleetProgram(problem, configurations, fixed=up).relax()
        cost = node_dollars(problem, configurations, up)
        solved = replace(solved, dollars=solved.dollars + cost, bound=relaxed.dollars)
    return solved


def _with_idle(problem: FleetProblem, configurations: Sequence[Configuration], nodes: F64) -> F64:
    """Returns nodes [configurations, hours] with those that are rented daily and not needed at an hour.

    They get the most numerous configuration of the hour, else of the day.
    """
    all_nodes = nodes.copy()
    for t, offer in enumerate(problem.offers):
        of_offer = [k for k, one in enumerate(configurations) if one.offer == t]
        if offer.daily and of_offer:
            own = nodes[of_offer]
            idle = own.sum(axis=0).max() - own.sum(axis=0)
            most = np.where(own.any(axis=0), own.argmax(axis=0), own.sum(axis=1).argmax())
            all_nodes[np.array(of_offer)[most], np.arange(problem.hours)] += idle
    return all_nodes


def _limit_to(up: F64, own: Sequence[int], most: int | None) -> None:
    """Removes nodes beyond the type's limit, of the most numerous configuration first."""
    while most is not None and own and up[list(own)].sum() > most:
        up[max(own, key=lambda k: float(up[k]))] -= 1


def node_dollars(problem: FleetProblem, configurations: Sequence[Configuration], nodes: F64) -> float:
    """Returns the dollars that nodes [configurations, hours] cost over all hours."""
    total = 0.0
    for t, offer in enumerate(problem.offers):
        of_offer = [k for k, one in enumerate(configurations) if one.offer == t]
        by_hour = nodes[of_offer].sum(axis=0)
        total += offer.price * float(by_hour.max() * by_hour.size if offer.daily else by_hour.sum())
    return total


def hour_of(problem: FleetProblem, h: int) -> FleetProblem:
    """Returns the problem restricted to one hour."""
    demands = tuple(replace(d, queries=d.queries[:, h : h + 1]) for d in problem.demands)
    return replace(problem, demands=demands, hours=1)


def _joined(hours: Sequence[Solved]) -> Solved:
    answered = tuple((k, i, c, h, rate) for h, one in enumerate(hours) for k, i, c, _, rate in one.answered)
    unserved = tuple(
        np.concatenate([one.unserved[m] for one in hours], axis=1) for m in range(len(hours[0].unserved))
    )
    return Solved(
        sum(one.dollars for one in hours),
        sum(one.bound for one in hours),
        np.concatenate([one.nodes for one in hours], axis=1),
        answered,
        unserved,
    )
