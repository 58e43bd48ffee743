"""Decisions by group: what one value of the field or one client causes does not decide for all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polyrec.planner.rollout.arm_sums import ArmRecords
from polyrec.planner.rollout.comparison import GROUPS, Comparison
from polyrec.planner.rollout.decision import RolloutBounds, decide
from polyrec.planner.rollout.expected_loss import PairRecords
from tests.planner.rollout.arms import records

HOSTILE = {
    "fails": records(400, failed=400),
    "is late": records(400, late=400),
    "is slow": records(400, ms=50),
    "has other scores": records(2000, shift=2.0),
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_one_value_of_the_field_rolls_nothing_back(hostile: ArmRecords) -> None:
    honest = [records(60, seed=10 + group) for group in range(GROUPS - 1)]
    comparison = Comparison()
    comparison.add(0.0, records(4000, seed=1), [hostile, *honest])
    decision = decide(comparison.compare(0.0), 0, 60.0, RolloutBounds(promote_after_s=30))
    assert decision.verdict == "continue"
    assert decision.reason.startswith("only by one group of values or clients: ")
    # if nearly all requests are its own, the other clients do not suffice to judge the version
    alone = Comparison()
    alone.add(0.0, records(4000, seed=1), [hostile, *[ArmRecords()] * (GROUPS - 1)])
    assert decide(alone.compare(0.0), 0, 60.0, RolloutBounds()).verdict == "rollback"


@pytest.mark.parametrize("bad", HOSTILE.values(), ids=HOSTILE)
def test_shadows_of_other_values_do_not_excuse_a_canary_with_one_value(bad: ArmRecords) -> None:
    scores = np.random.default_rng(2).beta(1, 20, (100, 10)).astype(np.float32)
    comparison = Comparison(paired=True)
    groups = [bad, *[ArmRecords()] * (GROUPS - 1)]
    comparison.add(0.0, records(4000, seed=1), groups, [PairRecords([(s, s) for s in scores])] * GROUPS)
    assert decide(comparison.compare(0.0), 0, 60.0, RolloutBounds()).verdict == "rollback"


@pytest.mark.parametrize("share", [0.0, 0.05])
@pytest.mark.parametrize("hostile", ["fails", "differs"])
def test_one_value_of_the_field_rolls_nothing_back_by_its_shadows(hostile: str, share: float) -> None:
    random = np.random.default_rng(2)
    scores = [random.beta(1, 20, 10).astype(np.float32) for _ in range(100 * GROUPS)]
    pairs = [PairRecords([(s, s) for s in scores[group::GROUPS]]) for group in range(GROUPS)]
    if hostile == "fails":
        pairs[3].failed = 200
    else:
        pairs[3].pairs += [(np.full(10, 0.999, np.float32), np.full(10, 1e-6, np.float32))] * 200
    comparison = Comparison(paired=True)
    canary = [records(60, seed=10 + group) if share else ArmRecords() for group in range(GROUPS)]
    comparison.add(0.0, records(4000, seed=1), canary, pairs)
    decision = decide(comparison.compare(0.0), 0, 60.0, RolloutBounds())
    assert decision.verdict == "continue"
    assert decision.reason.startswith("only by one group of values or clients: ")
    # a version that does so for all values is rolled back
    everywhere = Comparison(paired=True)
    everywhere.add(0.0, records(4000, seed=1), canary, [pairs[3]] * GROUPS)
    assert decide(everywhere.compare(0.0), 0, 60.0, RolloutBounds()).verdict == "rollback"


@pytest.mark.parametrize("bad", [{"failed": 3}, {"late": 5}, {"ms": 20}, {"shift": 0.7}], ids=str)
def test_a_version_that_is_bad_for_all_values_is_rolled_back(bad: dict[str, Any]) -> None:
    comparison = Comparison()
    groups = [records(60, **bad, seed=10 + group) for group in range(GROUPS)]
    comparison.add(0.0, records(4000, seed=1), groups)
    assert decide(comparison.compare(0.0), 0, 60.0, RolloutBounds()).verdict == "rollback"


def test_groups_are_judged_together_as_one() -> None:
    parts = [records(60, failed=1, late=2, seed=10 + group) for group in range(GROUPS)]
    whole = ArmRecords(
        [s for part in parts for s in part.took_s],
        sum(part.late for part in parts),
        sum(part.failed for part in parts),
        [s for part in parts for s in part.scores],
    )
    spread_out, in_one = Comparison(), Comparison()
    spread_out.add(0.0, records(4000, seed=1), parts)
    in_one.add(0.0, records(4000, seed=1), [whole, *[ArmRecords()] * (GROUPS - 1)])
    figures = [decide(c.compare(0.0), 0, 60.0, RolloutBounds()).figures for c in (spread_out, in_one)]
    assert figures[0] == figures[1]
