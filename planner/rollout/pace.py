"""Decides which answered requests are repeated, to compare both versions' answers.

    in spare time   a share of the requests
    guaranteed      at least per_s a second whatever the load, while repeating them takes at most TIME_SHARE
                    of the time

Without the guarantee a busy server would compare nothing, and so neither roll back nor promote a canary.
Which request is taken depends on time only, not on answers, so the estimates made from the comparisons stay
unbiased.
"""

from __future__ import annotations

import math

from polyrec.planner.rollout.split import Split

SPARE_INTERVAL_S = 0.02
"""Minimum time between two comparisons: encoding a query takes tenths of a millisecond on the event loop."""
TIME_SHARE = 0.02
"""Maximum share of the time that guaranteed comparisons take from answering requests."""


class ComparisonPace:
    """Spaces the comparisons of one rollout.

    share: of the requests, compared in spare time.
    per_s: number of comparisons a second that are made also without spare time, or all requests if there are
        fewer; 0: none.
    """

    def __init__(self, share: float, per_s: float) -> None:
        self._split = Split(share, "")
        self._interval_s = 1 / per_s if per_s else math.inf
        self._spare_s = self._paid_s = -math.inf
        self._due_s = -math.inf if per_s else math.inf

    def take(self, now_s: float, has_spare_time: bool) -> bool | None:
        """Decides on a request. Returns whether it is taken as guaranteed, None if it is not taken."""
        sampled = self._split.takes_next()
        if sampled and has_spare_time and now_s >= self._spare_s:
            guaranteed = False
        elif now_s >= max(self._due_s, self._paid_s):
            guaranteed = True
        else:
            return None
        self._spare_s, self._due_s = now_s + SPARE_INTERVAL_S, now_s + self._interval_s
        return guaranteed

    def spend(self, now_s: float, cost_s: float) -> None:
        """Delays the next guaranteed comparison by what a guaranteed one has cost, in seconds."""
        self._paid_s = max(self._paid_s, now_s) + cost_s / TIME_SHARE
