from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from scipy.optimize import linprog

from polyrec.planner.fleet.provisioning import configuration
from polyrec.planner.fleet.provisioning.capability import Demand, FleetProblem, NodeOffer, Runnable
from polyrec.planner.fleet.provisioning.columns import node_dollars, solve_fleet
from polyrec.planner.fleet.provisioning.configuration import fits
from polyrec.planner.fleet.provisioning.program import hourly_worth, unserved_prices

MOST = (2, 1)
"""Nodes of each type."""


def random_problem(seed: int) -> FleetProblem:
    """Two node types, two models, memories that hold two or three paths, demands of a few nodes."""
    rng = np.random.default_rng(seed)
    hours = int(rng.integers(1, 3))
    classes = int(rng.integers(1, 3))
    daily, asked = bool(rng.random() < 0.4), bool(rng.random() < 0.4)
    offers = []
    for t in range(2):
        runnables = []
        # three paths of which two or three fit, and two that fit together
        for m, name in ((0, "small"), (0, "large"), (1, "small")) if t == 0 else ((0, "small"), (1, "small")):
            quality = {"small": 0.2, "large": 0.25}[name]
            seconds = rng.uniform(0.5, 1.5, classes) * {"small": 1e-3, "large": 2.5e-3}[name]
            usage = np.vstack((seconds, np.full(classes, 1e-4)))
            if rng.random() < 0.2:
                usage[0, -1] = np.inf
            runnables.append(
                Runnable(
                    m, f"{name}@cpu", name, "cpu", usage, quality, quality, f"{m}{name}",
                    float(rng.choice([30.0, 45.0])), 1.0, 1.0,
                )
            )  # fmt: skip
        price = float(rng.choice([0.5, 1.0, 1.7]))
        offers.append(
            NodeOffer(
                f"type{t}", price, MOST[t], daily and t == 0, 0.0, ("cpu", "front"),
                np.array([float(rng.choice([1.0, 2.0])), 1.0]), {"cpu": 100.0}, {"cpu": 1}, tuple(runnables),
            )
        )  # fmt: skip
    demands = tuple(
        Demand(
            f"model{m}",
            np.array([10.0, 40.0])[:classes],
            rng.uniform(50, 500, (classes, hours)),
            float(rng.choice([0.0, 2.0])),
            0.22 if asked and m == 0 else None,
        )
        for m in range(2)
    )
    return FleetProblem(tuple(offers), demands, hours)


def min_dollars(problem: FleetProblem) -> float:
    """Tries all numbers of nodes of all maximal sets of paths; a program of its own shares the load."""
    kinds = []
    for t, offer in enumerate(problem.offers):
        every = range(len(offer.runnables))
        sets = [set(s) for n in every for s in combinations(every, n + 1) if fits(offer, s)]
        kinds += [(t, s) for s in sets if not any(s < other for other in sets)]
    penalty = unserved_prices(problem, whole=True)
    coupled = any(o.daily for o in problem.offers) or any(d.quality is not None for d in problem.demands)
    spans = [list(range(problem.hours))] if coupled else [[h] for h in range(problem.hours)]
    total = 0.0
    for span in spans:
        best = np.inf
        each = [range(MOST[t] + 1) for t, _ in kinds]
        for counts in product(product(*each), repeat=len(span)):
            cost = 0.0
            for t, offer in enumerate(problem.offers):
                by_hour = [sum(one[k] for k, (own, _) in enumerate(kinds) if own == t) for one in counts]
                if max(by_hour) > MOST[t]:
                    cost = np.inf
                cost += offer.price * (max(by_hour) * len(span) if offer.daily else sum(by_hour))
            if np.isfinite(cost):
                best = min(best, cost + share_dollars(problem, kinds, counts, span, penalty))
        total += best
    return float(total)


def share_dollars(problem, kinds, counts, span, penalty) -> float:  # type: ignore[no-untyped-def]
    """The least penalty minus worth of the answers of given nodes."""
    columns = [
        (j, k, r, c)
        for j, _ in enumerate(span)
        for k, (t, s) in enumerate(kinds)
        for r in (problem.offers[t].runnables[i] for i in s)
        for c in range(len(problem.demands[r.model].rows))
        if np.isfinite(r.usage[:, c]).all() and counts[j][k]
    ]
    fixed = 0.0
    rows, limits = [], []
    for j, h in enumerate(span):
        for m, d in enumerate(problem.demands):
            for c in range(len(d.rows)):
                rows.append([float((j, m, c) == (jj, r.model, cc)) for jj, _, r, cc in columns])
                limits.append(d.queries[c, h])
                fixed += penalty[m][h] * d.rows[c] * d.queries[c, h]
        for k, (t, _) in enumerate(kinds):
            for e, capacity in enumerate(problem.offers[t].capacity):
                rows.append([r.usage[e, c] if (jj, kk) == (j, k) else 0.0 for jj, kk, r, c in columns])
                limits.append(capacity * counts[j][k])
    for m, d in enumerate(problem.demands):
        if d.quality is not None:
            rows.append([(d.quality - r.value) * d.rows[c] * (r.model == m) for _, _, r, c in columns])
            limits.append(0.0)
    if not columns:
        return fixed
    gain = [
        -(penalty[r.model][span[j]] + hourly_worth(problem.demands[r.model].weight, r.value))
        * problem.demands[r.model].rows[c]
        for j, _, r, c in columns
    ]
    found = linprog(gain, A_ub=np.array(rows), b_ub=np.array(limits), method="highs")
    return fixed + float(found.fun)


@pytest.mark.parametrize("seed", range(12))
def test_fleet_costs_as_little_as_the_best_of_all_fleets(seed: int) -> None:
    problem = random_problem(seed)
    found = solve_fleet(problem)
    assert found.proven
    assert found.bound <= found.solved.dollars + 1e-6
    assert found.solved.dollars == pytest.approx(min_dollars(problem), rel=2e-4, abs=1e-6)


@pytest.mark.parametrize("seed", [1, 10])
def test_worth_of_all_answers_hides_no_node_that_can_be_saved(seed: int) -> None:
    """Information is worth ten thousand times what nodes cost, on whichever path."""
    problem = random_problem(seed)
    offers = tuple(
        replace(o, price=0.01, daily=False, runnables=tuple(replace(r, value=0.2) for r in o.runnables))
        for o in problem.offers
    )
    # a load that one or two of the three nodes answer, so that another one would be wasted
    demands = tuple(replace(d, queries=d.queries * 0.1, weight=1e4, quality=None) for d in problem.demands)
    problem = replace(problem, offers=offers, demands=demands)
    found = solve_fleet(problem)
    assert found.solved.dollars - min_dollars(problem) < 0.005
    assert found.gap <= 1


@pytest.mark.parametrize("seed", range(6))
def test_solution_keeps_every_limit(seed: int) -> None:
    problem = random_problem(100 + seed)
    found = solve_fleet(problem)
    used = [np.zeros((len(o.capacity), problem.hours)) for o in problem.offers]
    answered = [np.zeros_like(d.queries) for d in problem.demands]
    for k, i, c, h, rate in found.solved.answered:
        one = found.configurations[k]
        r = problem.offers[one.offer].runnables[i]
        used[one.offer][:, h] += rate * r.usage[:, c]
        answered[r.model][c, h] += rate
    for t, offer in enumerate(problem.offers):
        own = [k for k, one in enumerate(found.configurations) if one.offer == t]
        nodes = found.solved.nodes[own].sum(axis=0)
        assert (nodes <= MOST[t]).all()
        assert (used[t] <= offer.capacity[:, None] * nodes + 1e-6).all()
        assert all(fits(offer, found.configurations[k].paths) for k in own)
    for d, given, unserved in zip(problem.demands, answered, found.solved.unserved, strict=True):
        np.testing.assert_allclose(given + unserved, d.queries, atol=1e-5)


def test_column_generation_is_as_good_as_enumeration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = replace(random_problem(3), hours=1)
    problem = replace(problem, demands=tuple(replace(d, queries=d.queries[:, :1]) for d in problem.demands))
    every = solve_fleet(problem)
    monkeypatch.setattr(configuration, "ENUMERATED", 0)
    generated = solve_fleet(problem)
    assert generated.proven
    assert generated.bound == pytest.approx(every.bound, rel=1e-6)


@pytest.mark.parametrize("limited", [0, 1])
def test_another_node_saves_what_its_shadow_price_says(limited: int) -> None:
    problem = random_problem(5)
    demands = tuple(replace(d, queries=8 * d.queries[:, :1], quality=None) for d in problem.demands)

    def dollars(most: int) -> tuple[float, float]:
        """Least cost of the relaxation, and the worth of one more node of the limited type."""
        offers = tuple(
            replace(o, daily=False, most=most if t == limited else None) for t, o in enumerate(problem.offers)
        )
        found = solve_fleet(FleetProblem(offers, demands, 1))
        return found.bound, float(found.worth[limited][0])

    costs = [dollars(most) for most in (1, 2, 3)]
    price = problem.offers[limited].price
    for (before, worth), (after, left) in pairwise(costs):
        # the cost is convex in the limit: what one node saves lies between the worths before and after
        assert left - price - 1e-6 <= before - after + 1e-6 <= worth - price + 2e-6 or worth <= price + 1e-6


def test_cost_counts_daily_nodes_at_every_hour() -> None:
    problem = random_problem(0)
    offers = (replace(problem.offers[0], daily=True, price=2.0), replace(problem.offers[1], price=1.0))
    problem = replace(problem, offers=offers, hours=2)
    kinds = solve_fleet(random_problem(0)).configurations
    nodes = np.zeros((len(kinds), 2))
    nodes[0, 1] = 3
    nodes[next(k for k, one in enumerate(kinds) if one.offer == 1), 0] = 1
    assert node_dollars(problem, kinds, nodes) == 3 * 2.0 * 2 + 1.0
