"""Follows the SLO's error budget: the share of it that was used, and burn rates over minutes and hours.

A burn rate is the share of requests that missed the SLO over the share that may: 1 uses the budget exactly.
The alerts of deploy/prometheus/rules.yml use the same. A process knows only the time since its start.
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
"""Windows of burn rates, as alerts use them; one longer than the server runs is cut to its start."""


class Count(NamedTuple):
    """Requests that the SLO counts, and those of them that missed it, up to a time."""

    at_s: float
    counted: float
    missed: float


class ErrorBudget:
    """The error budget of one server. slo_share: the share of requests that is to meet the SLO."""

    def __init__(self, slo_share: float, started_s: float) -> None:
        self._allowed = 1 - slo_share
        longest_s = max(WINDOWS_S.values())
        self._counts: deque[Count] = deque([Count(started_s, 0, 0)], maxlen=round(longest_s / EVERY_S) + 2)
        self._now = self._counts[0]

    def note(self, now_s: float, counted: float, missed: float) -> None:
        """Takes the counts so far."""
        self._now = Count(now_s, counted, missed)
        if now_s - self._counts[-1].at_s >= EVERY_S:
            self._counts.append(self._now)

    def used(self) -> float | None:
        """Share of the budget of the requests so far that was used; None without requests."""
        return self._share_of_budget(Count(self._now.at_s, 0, 0))

    def burn_rates(self) -> dict[str, float | None]:
        """Burn rate by window, None for one without requests."""
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
        if counted <= 0:
            return None
        return (self._now.missed - before.missed) / counted / self._allowed
