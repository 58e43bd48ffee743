from __future__ import annotations

import numpy as np

from polyrec.planner.deployment.proposal import Proposal, propose
from polyrec.planner.deployment.requirements import Requirements
from polyrec.report.chart import png
from polyrec.report.plan import routing_map
from polyrec.report.plan.routing_map import BUDGETS_MS, ROWS
from tests.planner.planning import path, profile, traffic

GOOD = path("hybrid@cpu", quality=0.81, row_s=1e-5)
FAST = path("table@cpu", quality=0.8)


def proposal(rate: float) -> Proposal:
    return propose(profile(GOOD, FAST), Requirements(0.01, traffic(rate)), [None, None], more=False)


def test_a_picture_is_a_png() -> None:
    assert png(routing_map.draw(proposal(3000))).startswith(b"\x89PNG")


def test_idle_the_most_accurate_path_that_is_fast_enough_is_shown() -> None:
    made = proposal(3000)
    options = [made.problem.options[i] for i in made.choice.options]
    names = [made.problem.paths[o.path].path.name for o in options]
    shown = routing_map.idle(made.problem, options)
    for b in range(0, BUDGETS_MS.size, 13):
        for r in range(0, ROWS.size, 17):
            fast_enough = [
                name
                for name, o in zip(names, options, strict=True)
                if o.timing.tail(ROWS[r]) <= BUDGETS_MS[b] / 1e3
            ]
            if not fast_enough:
                assert np.isnan(shown[b, r])
            else:
                expected = "hybrid@cpu" if "hybrid@cpu" in fast_enough else fast_enough[0]
                assert names[int(shown[b, r])] == expected


def test_at_high_load_the_price_of_time_counts() -> None:
    made = proposal(60_000)
    options = [made.problem.options[i] for i in made.choice.options]
    names = [made.problem.paths[o.path].path.name for o in options]
    at = (BUDGETS_MS.size * 3 // 4, 30)
    assert names[int(routing_map.idle(made.problem, options)[at])] == "hybrid@cpu"
    assert names[int(routing_map.loaded(made, options)[at])] == "table@cpu"
