"""The outcome of an open-loop run: arrays over its requests in, the figures that describe them out.

The arrays are kept whole, so that other figures (goodput within a budget, curves over time) can be made of
them: loadtest/results/figures.py. Figures taken while the driver itself was late are refused: they would
blame the server for what the client did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from polyrec.loadtest.drivers.connection import NO_ANSWER, LoadError
from polyrec.models.schema.batch import F64

NO_PATH = -1


class CouldNotKeepUp(LoadError):
    """The driver, not the server, was late."""


class Fate(IntEnum):
    """How a request ended: the statuses of the contract, and 2xx apart by the budget."""

    OK = 0
    LATE = 1
    REFUSED = 2  # 429
    EXPIRED = 3  # 504
    UNAVAILABLE = 4  # 503
    OTHER = 5  # any other status, or no answer


_FATE_OF_STATUS = {429: Fate.REFUSED, 504: Fate.EXPIRED, 503: Fate.UNAVAILABLE}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened to each request of a run, in the order of the schedule.

    due_s: when it was to leave, from the start. lag_s: how much later the driver handed it over.
    latency_s: from due to the end of the answer, NaN without one. status: HTTP, or 0 for no answer.
    rows, budget_s: as sent (one row where it is not known, infinite without a budget).
    path: int16, position in `paths` of what answered, or NO_PATH. degraded: the answer says so.
    offences: request number -> why it had no answer. begin_s, end_s: the time that the schedule covers.
    connections: opened at the end; held_back: requests of the whole run that found all of them busy.
    started_s: the schedule's zero, by perf_counter; 0 of one that was simulated.
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
    offences: dict[int, str]
    begin_s: float
    end_s: float
    connections: int
    held_back: int
    started_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s

    @property
    def answered(self) -> NDArray[np.bool_]:
        """bool [requests]: those with a 2xx status, in time or not."""
        return (self.status >= 200) & (self.status < 300)

    @property
    def fate(self) -> NDArray[np.int8]:
        """int8 [requests]: a `Fate` each."""
        fate = np.full(self.due_s.size, Fate.OTHER, np.int8)
        for status, meaning in _FATE_OF_STATUS.items():
            fate[self.status == status] = meaning
        answered = self.answered
        fate[answered] = np.where(self.latency_s[answered] <= self.budget_s[answered], Fate.OK, Fate.LATE)
        return fate

    def between(self, begin_s: float, end_s: float) -> Outcome:
        """The requests due in [begin_s, end_s)."""
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
            offences={i - first: why for i, why in self.offences.items() if first <= i < end},
            begin_s=max(begin_s, self.begin_s),
            end_s=min(end_s, self.end_s),
        )

    def since(self, start_s: float) -> Outcome:
        """Without the requests due earlier: the run after its warm-up."""
        return self.between(start_s, np.inf)

    def require_punctual(self, max_lag_s: float) -> float:
        """99th percentile of the driver's own lag. Raises CouldNotKeepUp if it is over `max_lag_s`,
        LoadError if no request was due."""
        n = self.due_s.size
        if not n:
            raise LoadError("no request was due in the measured time; raise --rate or --seconds")
        lag_p99 = percentile(self.lag_s, 99)
        if lag_p99 > max_lag_s:
            raise CouldNotKeepUp(
                f"the driver could not keep up: 1% of {n} requests left {1e3 * lag_p99:.2f} ms late or more, "
                f"allowed are {1e3 * max_lag_s:g}; lower the rate, or give it a core of its own (--core)"
            )
        return lag_p99


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of a run. Percentiles are of the latency of answers with a 2xx status, none interpolated;
    everything else is an error, named in `failures`. rate: requests per second as they were due.
    """

    requests: int
    errors: int
    failures: dict[str, int]
    rate: float
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    p99_9_ms: float | None
    max_ms: float | None
    lag_p99_ms: float
    connections: int
    held_back: int


def report(outcome: Outcome, max_lag_s: float = 0.001) -> Report:
    """Raises CouldNotKeepUp if more than 1% of the requests left over `max_lag_s` late."""
    lag_p99 = outcome.require_punctual(max_lag_s)
    n = outcome.due_s.size
    good = outcome.answered
    p50, p90, p99, p99_9, top = percentiles_ms(outcome.latency_s[good])
    failures = Counter(outcome.offences.values())
    failures.update(f"HTTP {code}" for code in outcome.status[~good].tolist() if code != NO_ANSWER)
    span = outcome.due_s[-1] - outcome.due_s[0]
    return Report(
        requests=n,
        errors=int(n - good.sum()),
        failures=dict(failures.most_common()),
        rate=round((n - 1) / span, 1) if span else float(n),
        p50_ms=p50,
        p90_ms=p90,
        p99_ms=p99,
        p99_9_ms=p99_9,
        max_ms=top,
        lag_p99_ms=round(1e3 * lag_p99, 3),
        connections=outcome.connections,
        held_back=outcome.held_back,
    )


def percentiles_ms(latency_s: F64) -> tuple[float | None, ...]:
    """The 50th, 90th, 99th, 99.9th percentile and the highest, in milliseconds; None of no latencies."""
    return tuple(
        round(1e3 * percentile(latency_s, q), 3) if latency_s.size else None for q in (50, 90, 99, 99.9, 100)
    )


def percentile(values: F64, q: float) -> float:
    """A value that occurred; of percentiles between two the higher."""
    return float(np.percentile(values, q, method="higher"))
