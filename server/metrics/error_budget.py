"""Tracks the SLO's error budget: the used share, and burn rates over minutes and hours.

A burn rate is the share of requests that missed the SLO divided by the share that may miss it; 1 uses the
budget exactly. The alerts in deploy/prometheus/rules.yml use the same definition. A process only knows the
time since its start.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

SLO_SHARE = 0.99
"""Service level objective: share of requests answered within their latency budget."""
SLO_MISSES = ("late", "overloaded", "expired", "unavailable", "error")
"""Outcomes that miss the SLO. `invalid` and `cancelled` are caused by the client and do not count."""
EVERY_S = 15.0
WINDOWS_S = {"5m": 300.0, "1h": 3600.0, "6h": 21600.0}
"""Windows of burn rates, as in the alerts. A window begins at the server's start at the earliest."""


class Count(NamedTuple):
    """Number of requests that the SLO counts, and of those that missed it, up to a time."""

    at_s: float
    counted: float
    missed: float


class ErrorBudget:
    """The error budget of one server. slo_share: share of requests that should meet the SLO."""

    def __init__(self, slo_share: float, started_s: float) -> None:
        self._allowed = 1 - slo_share
        longest_s = max(WINDOWS_S.values())
        self._counts: deque[Count] = deque([Count(started_s, 0, 0)], maxlen=round(longest_s / EVERY_S) + 2)
        self._now = self._counts[0]

    def record(self, now_s: float, counted: float, missed: float) -> None:
        """Records the cumulative counts."""
        self._now = Count(now_s, counted, missed)
        if now_s - self._counts[-1].at_s >= EVERY_S:
            self._counts.append(self._now)

    def used(self) -> float | None:
        """Used share of the error budget of all requests so far; None while it is less than one request."""
        return self._share_of_budget(Count(self._now.at_s, 0, 0))

    def burn_rates(self) -> dict[str, float | None]:
        """Returns the burn rate by window; None for a window whose budget is less than one request."""
        return {name: self._burn_rate(seconds) for name, seconds in WINDOWS_S.items()}

    def _burn_rate(self, seconds: float) -> float | None:
        begin_s = self._now.at_s - seconds
        before = self._counts[0]
        for count in reversed(self._counts):
            if count.at_s <= begin_s:
                before = count
                break
        return self._share_of_budget(before)

    def _share_of_budget(self, before: Count) -> float | None:
        counted = self._now.counted - before.counted
        if counted * self._allowed < 1:
            return None  # a single miss would use it many times
        return (self._now.missed - before.missed) / counted / self._allowed
