"""Judges whether a path's quality is worth more than the speed of a path that is nearly as good.

Feasibility (feasibility.py) keeps the rest of the queue in time on the fastest path, whatever that costs in
quality. That is right if the fastest path is much faster. If it is hardly faster, it saves only queries that
miss their deadlines by little, and each answer costs the difference in quality.

So losses (queries not answered in time) are recorded with the share of their time that was too much
(lost_times.py). A path that takes a share d less time would have avoided those up to d. If it is in use
already, a slower path would cause about as many more, since about as many are just in time as just late.

Before any loss was seen, a queue's theory tells what to expect. In heavy traffic a query waits longer than
its budget with probability exp(-2 (1 - u) budget / (u s (1 + c2))), for a utilization u, a service time s and
its squared coefficient of variation c2. If s falls by a share d, the exponent grows by
d x 2 budget / (u s (1 + c2)).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sinh

from polyrec.planner.routing.lanes.path import PathState
from polyrec.planner.routing.path_option import PathOption
from polyrec.planner.routing.policies.loss_backoff import TAIL, LossBackoff

GROWTH = 3.0
"""Estimate of 2 / (u (1 + c2))."""
MAX_EXPONENT = 50.0


def compare_speeds(
    options: Sequence[PathOption],
    paths: Sequence[PathState],
    row_s: Mapping[int, float],
    full_row_s: Mapping[int, float],
    rows: int,
    utilization: float,
    budget_s: float,
    losses: LossBackoff,
) -> None:
    """Sets which of a lane's options have enough quality to forgo the speed of all faster ones.

    options: by falling value and row_s.
    row_s: seconds per row by path, in usual batches, which have `rows` rows.
    full_row_s: the same in the largest merged batches, as in a burst.
    utilization: of the lanes, if everything is executed on the fastest paths.
    budget_s: the usual budget.
    """
    for at, option in enumerate(options):
        value, path_s = paths[option.path].value, row_s[option.path]
        full_s = full_row_s[option.path]
        idle_share = 1 - utilization * full_s / full_row_s[options[-1].path]
        option.outweighs_speed = at + 1 < len(options)
        for faster in options[at + 1 :]:
            saved_share = 1 - min(row_s[faster.path] / path_s, full_row_s[faster.path] / full_s)
            gain = 1 - paths[faster.path].value / value
            # at capacity the queue grows, however small the difference
            if (
                saved_share >= idle_share
                or expected_losses(1 - row_s[faster.path] / path_s, budget_s, rows * path_s) > gain
                # a queue's wait falls by more than the service time
                or losses.avoidable_share(saved_share / idle_share) > gain
            ):
                option.outweighs_speed = False
                break


def expected_losses(saved_share: float, budget_s: float, service_s: float) -> float:
    """Returns the share of the queries that a faster path is expected to save from being late.

    Of those on the slower path, TAIL are assumed to be late.

    saved_share: share of the service time that it saves.
    service_s: seconds of a usual batch on the slower path.
    """
    exponent = GROWTH * saved_share * budget_s / service_s
    return 1.0 if exponent > MAX_EXPONENT else min(1.0, 2 * TAIL * sinh(exponent / 2))
