"""Records of made-up arms, for tests of decisions."""

from __future__ import annotations

import numpy as np

from polyrec.planner.rollout.arm_sums import ArmRecords
from polyrec.planner.rollout.comparison import GROUPS


def records(
    requests: int, failed: int = 0, late: int = 0, ms: float = 2.0, shift: float = 0.0, seed: int = 0
) -> ArmRecords:
    """Answers of about `ms` milliseconds and scores about `shift`."""
    random = np.random.default_rng(seed)
    took_s = list(random.gamma(4, ms / 4e3, requests - failed))
    scores = list(random.normal(shift, 1, (requests - failed, 5)).astype(np.float32))
    return ArmRecords(took_s, late, failed, scores)


def share(count: int, group: int) -> int:
    """Returns a group's part of a number of requests that are spread evenly."""
    return len(range(group, count, GROUPS))


def spread(arm: ArmRecords) -> list[ArmRecords]:
    """Returns the records of each group, requests being spread evenly."""
    return [
        ArmRecords(
            arm.took_s[group::GROUPS],
            share(arm.late, group),
            share(arm.failed, group),
            arm.scores[group::GROUPS],
            arm.waited_s[group::GROUPS],
            share(arm.excused, group),
        )
        for group in range(GROUPS)
    ]
