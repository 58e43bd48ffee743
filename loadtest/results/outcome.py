"""Holds the outcome of an open-loop run, as arrays over its requests, and computes its latency report.

Service-level figures and curves over time are computed in loadtest/results/figures.py. If the driver itself
was late, a report would blame the server for the client's delay, so callers first `require_punctual`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from polyrec.loadtest.drivers.connection import NO_ANSWER, LoadError
from polyrec.models.schema.batch import F64

NO_PATH = -1


class DriverTooSlow(LoadError):
    """Raised when the load driver could not keep its schedule."""


class Fate(IntEnum):
    """How a request ended: the meaning of its status; 2xx answers are split by budget."""

    OK = 0
    LATE = 1
    REJECTED = 2  # 429
    EXPIRED = 3  # 504
    UNAVAILABLE = 4  # 503
    OTHER = 5  # any other status, or no answer


_FATE_OF_STATUS = {429: Fate.REJECTED, 504: Fate.EXPIRED, 503: Fate.UNAVAILABLE}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The requests of a run, in the order of the schedule.

    due_s: intended departure, from the start. lag_s: delay caused by the driver itself.
    latency_s: from due_s to the end of the answer, NaN without one. status: HTTP status, or 0 for no answer.
    rows, budget_s: as sent (one row if unknown, infinite without a budget).
    path: int16, index into `paths` of the path that answered, or NO_PATH. degraded: as the answer says.
    errors: request number -> reason for no answer. begin_s, end_s: the time that the schedule covers.
    connections: open at the end. held_back: requests of the whole run that found all connections busy.
    started_s: time zero of the schedule, by perf_counter; 0 for a simulated run.
    reasons: HTTP status -> the reason in the first such answer of the whole run.
    """

    due_s: F64
    lag_s: F64
    latency_s: F64
    status: NDArray[np.int64]
    rows: NDArray[np.int64]
    budget_s: F64
    path: NDArray[np.int16]
    paths: tuple[str, ...]
    degraded: NDArray[np.bool_]
    errors: dict[int, str]
    begin_s: float
    end_s: float
    connections: int
    held_back: int
    started_s: float = 0.0
    reasons: dict[int, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s

    @property
    def answered(self) -> NDArray[np.bool_]:
        """Requests with a 2xx status, in time or not, bool [requests]."""
        return (self.status >= 200) & (self.status < 300)

    @property
    def fate(self) -> NDArray[np.int8]:
        """The `Fate` of each request, int8 [requests]."""
        fate = np.full(self.due_s.size, Fate.OTHER, np.int8)
        for status, meaning in _FATE_OF_STATUS.items():
            fate[self.status == status] = meaning
        answered = self.answered
        fate[answered] = np.where(self.latency_s[answered] <= self.budget_s[answered], Fate.OK, Fate.LATE)
        return fate

    def between(self, begin_s: float, end_s: float) -> Outcome:
        """Returns the requests due in [begin_s, end_s)."""
        first, end = np.searchsorted(self.due_s, (begin_s, end_s)).tolist()
        part = slice(first, end)
        return replace(
            self,
            due_s=self.due_s[part],
            lag_s=self.lag_s[part],
            latency_s=self.latency_s[part],
            status=self.status[part],
            rows=self.rows[part],
            budget_s=self.budget_s[part],
            path=self.path[part],
            degraded=self.degraded[part],
            errors={i - first: why for i, why in self.errors.items() if first <= i < end},
            begin_s=max(begin_s, self.begin_s),
            end_s=min(end_s, self.end_s),
        )

    def since(self, start_s: float) -> Outcome:
        """Returns the requests due from start_s on, which is the run after its warm-up."""
        return self.between(start_s, np.inf)

    def require_punctual(self, max_lag_s: float) -> None:
        """Raises DriverTooSlow if the driver itself delayed more than 1% of the requests by over max_lag_s.

        Raises LoadError if no request was due.
        """
        if not self.due_s.size:
            raise LoadError("no request was due in the measured time; raise --rate or --seconds")
        lag_p99 = percentile(self.lag_s, 99)
        if lag_p99 > max_lag_s:
            raise DriverTooSlow(
                f"the driver could not keep up: 1% of {self.due_s.size} requests left {1e3 * lag_p99:.2f} ms "
                f"late or more, allowed are {1e3 * max_lag_s:g}; lower the rate, or leave the driver a core "
                "of its own"
            )


@dataclass(frozen=True, slots=True)
class Report:
    """Latency figures of a run.

    Percentiles are of answers with a 2xx status, not interpolated. All other requests are errors, counted in
    `failures`; `reasons` has the reason in the first answer of each such status.
    rate: requests per second of the schedule.
    """

    requests: int
    errors: int
    failures: dict[str, int]
    reasons: dict[str, str]
    rate: float
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    p99_9_ms: float | None
    max_ms: float | None
    lag_p99_ms: float
    connections: int
    held_back: int


def report(outcome: Outcome) -> Report:
    """Computes the report of a run with at least one request."""
    n = outcome.due_s.size
    good = outcome.answered
    p50, p90, p99, p99_9, top = percentiles_ms(outcome.latency_s[good])
    failures = Counter(outcome.errors.values())
    failures.update(f"HTTP {code}" for code in outcome.status[~good].tolist() if code != NO_ANSWER)
    span = outcome.due_s[-1] - outcome.due_s[0]
    return Report(
        requests=n,
        errors=int(n - good.sum()),
        failures=dict(failures.most_common()),
        reasons={f"HTTP {code}": outcome.reasons[code] for code in sorted(outcome.reasons)},
        rate=round((n - 1) / span, 1) if span else float(n),
        p50_ms=p50,
        p90_ms=p90,
        p99_ms=p99,
        p99_9_ms=p99_9,
        max_ms=top,
        lag_p99_ms=round(1e3 * percentile(outcome.lag_s, 99), 3),
        connections=outcome.connections,
        held_back=outcome.held_back,
    )


def percentiles_ms(latency_s: F64) -> tuple[float | None, ...]:
    """Returns the 50th, 90th, 99th, 99.9th percentile and the maximum, in milliseconds; None without
    latencies.
    """
    return tuple(
        round(1e3 * percentile(latency_s, q), 3) if latency_s.size else None for q in (50, 90, 99, 99.9, 100)
    )


def percentile(values: F64, q: float) -> float:
    """Returns a percentile that is one of the values; the higher one between two."""
    return float(np.percentile(values, q, method="higher"))
