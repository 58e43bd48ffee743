"""The outcome of an open-loop run: arrays over its requests in, the figures that describe them out.

The arrays are kept whole, so that other figures (goodput within a budget, curves over time) can be
made of them. Figures taken while the driver itself was late are refused: they would blame the server
for what the client did.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadtest.connection import NO_ANSWER, LoadError

F64 = NDArray[np.float64]


class CouldNotKeepUp(LoadError):
    """The driver, not the server, was late."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened to each request of a run, in the order of the schedule.

    due_s: when it was to leave, from the start. lag_s: how much later the driver handed it over.
    latency_s: from due to the end of the answer, NaN without one. status: HTTP, or 0 for no answer.
    offences: request number -> why it had no answer. connections: opened at the end; held_back:
    requests of the whole run that found all connections busy.
    """

    due_s: F64
    lag_s: F64
    latency_s: F64
    status: NDArray[np.int64]
    offences: dict[int, str]
    connections: int
    held_back: int

    def since(self, start_s: float) -> Outcome:
        """Without the requests due earlier: the run after its warm-up."""
        first = int(np.searchsorted(self.due_s, start_s))
        return replace(
            self,
            due_s=self.due_s[first:],
            lag_s=self.lag_s[first:],
            latency_s=self.latency_s[first:],
            status=self.status[first:],
            offences={i - first: why for i, why in self.offences.items() if i >= first},
        )


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
    n = outcome.due_s.size
    if not n:
        raise LoadError("no request was due in the measured time; raise --rate or --seconds")
    lag_p99 = _percentile(outcome.lag_s, 99)
    if lag_p99 > max_lag_s:
        raise CouldNotKeepUp(
            f"the driver could not keep up: 1% of {n} requests left {1e3 * lag_p99:.2f} ms late or more, "
            f"allowed are {1e3 * max_lag_s:g}; lower the rate, or give it a core of its own (--core)"
        )
    good = (outcome.status >= 200) & (outcome.status < 300)
    latency = outcome.latency_s[good]
    p50, p90, p99, p99_9, top = (
        round(1e3 * _percentile(latency, q), 3) if latency.size else None for q in (50, 90, 99, 99.9, 100)
    )
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


def _percentile(values: F64, q: float) -> float:
    return float(np.percentile(values, q, method="higher"))
