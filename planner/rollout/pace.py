"""Decides which answered requests are repeated, to compare both versions' answers.

    in spare time   a share of the requests
    guaranteed      about per_s a second whatever the load, while repeating them takes at most TIME_SHARE of
                    the time

Without the guarantee a busy server would compare nothing, and so neither roll back nor promote a canary.
Each interval of 1 / per_s takes one request, at a random position among as many as the interval before had.
Not the first one: the answers of a batch come together, in the order of their deadlines, so a client with
tight budgets would be first in nearly every batch and decide alone on the canary.
"""

from __future__ import annotations

import math
from random import Random

from polyrec.planner.rollout.split import Split

SPARE_INTERVAL_S = 0.02
"""Minimum time between two comparisons: encoding a query takes tenths of a millisecond on the event loop."""
TIME_SHARE = 0.02
"""Maximum share of the time that guaranteed comparisons take from answering requests."""


class ComparisonPace:
    """Spaces the comparisons of one rollout.

    share: of the requests, compared in spare time.
    per_s: number of comparisons a second, at most, that are made also without spare time; 0: none.
        Nine in ten of them are, and all requests if there are fewer.
    rng: draws the positions, which clients must not be able to foresee.
    """

    def __init__(self, share: float, per_s: float, rng: Random) -> None:
        self._split = Split(share, "")
        self._rng = rng
        self._interval_s = 1 / per_s if per_s else math.inf
        self._spare_s = self._paid_s = -math.inf
        self._end_s = -math.inf if per_s else math.inf
        self._seen = self._position = 0
        self._is_taken = not per_s

    def take(self, now_s: float, has_spare_time: bool) -> bool | None:
        """Decides on a request. Returns whether it is taken as guaranteed, None if it is not taken."""
        self._enter_interval(now_s)
        sampled = self._split.takes_next()
        if sampled and has_spare_time and now_s >= self._spare_s:
            guaranteed = False
        elif not self._is_taken and self._seen > self._position:
            guaranteed = True
        else:
            return None
        self._spare_s, self._is_taken = now_s + SPARE_INTERVAL_S, True
        return guaranteed

    def _enter_interval(self, now_s: float) -> None:
        """Counts a request; begins the next interval if it is due."""
        if now_s >= max(self._end_s, self._paid_s):
            self._position = int(self._rng.random() * self._seen)
            self._end_s = now_s + self._interval_s
            self._seen, self._is_taken = 0, False
        self._seen += now_s < self._end_s

    def spend(self, now_s: float, cost_s: float) -> None:
        """Delays the next guaranteed comparison by what a guaranteed one has cost, in seconds."""
        self._paid_s = max(self._paid_s, now_s) + cost_s / TIME_SHARE
