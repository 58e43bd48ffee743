"""Loads a server with known requests and checks every answer against the reference.

With `Known` requests, a closed loop measures requests/s and latency, and an open loop tests whether a Poisson
rate is held: p99 within the limit, and at least SHARE of the requests answered correctly in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import orjson
import uvloop

from polyrec.loadtest.drivers.closed_loop import ClosedLoop, keep_busy
from polyrec.loadtest.drivers.connection import LoadError, Target
from polyrec.loadtest.drivers.load import BUDGET, load_of
from polyrec.loadtest.drivers.open_loop import Limits, run
from polyrec.models.schema.batch import F32, F64
from polyrec.planner.arrivals import arrival_times
from polyrec.planner.traffic import Arrivals

SHARE = 0.99
GRACE_S = 2.0
MAX_LAG_S = 0.002
"""Maximum 99th percentile of the sender's own delay for a trial to count."""
PATIENT = {BUDGET: "600000"}


@dataclass(frozen=True, slots=True)
class Known:
    """Requests with known answers.

    url, headers: of all requests. bodies: one per request. expected: float64 [requests, rows], probabilities.
    tolerance: maximum absolute error. binary: whether answers are binary tensors.
    """

    url: str
    headers: Mapping[str, str]
    bodies: Sequence[bytes]
    expected: F64
    tolerance: float
    binary: bool = False

    @property
    def rows(self) -> int:
        return int(self.expected.shape[1])

    def right(self, index: int, body: bytes) -> bool:
        """Returns whether the answer to request `index`, counted over all repetitions, is correct."""
        found = read_binary(body, self.rows) if self.binary else read_json(body)
        expected = self.expected[index % len(self.expected)]
        return found.shape == expected.shape and bool(np.abs(found - expected).max() <= self.tolerance)


def read_json(body: bytes) -> F32:
    """Returns the probabilities of a JSON inference answer; empty if it is not one."""
    try:
        return np.array(orjson.loads(body)["outputs"][0]["data"], np.float32)
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, ValueError):
        return np.empty(0, np.float32)


def read_binary(body: bytes, rows: int) -> F32:
    """Returns the probabilities of an answer that ends with one binary tensor; empty if it is too short."""
    return np.frombuffer(body[-4 * rows :], "<f4") if len(body) > 4 * rows else np.empty(0, np.float32)


def closed(known: Known, connections: int, seconds: float) -> ClosedLoop:
    """Runs a closed loop. Raises LoadError for a wrong answer."""
    target = Target(known.url, {**known.headers, **PATIENT})
    requests = [target.request(body) for body in known.bodies]
    bodies: dict[int, bytes] = {}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        loop = runner.run(keep_busy(target, requests, connections, seconds, bodies=bodies))
    wrong = next((index for index, body in bodies.items() if not known.right(index, body)), None)
    if wrong is not None:
        raise LoadError(f"{known.url} answered request {wrong} wrong: {bodies[wrong][:200]!r}")
    return loop


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of an open loop.

    right_in_time, rejected: share of all requests answered correctly in time, and with 429, 503 or 504.
    p99_s: of the answered requests. lag_s: 99th percentile of the sender's own delay.
    """

    rate: float
    requests: int
    right_in_time: float
    rejected: float
    p99_s: float
    lag_s: float

    @property
    def counts(self) -> bool:
        """Whether the sender was on time."""
        return self.lag_s <= MAX_LAG_S

    def held(self, limit_s: float) -> bool:
        return self.right_in_time >= SHARE and self.p99_s <= limit_s


def trial(known: Known, rate: float, seconds: float, limit_s: float, seed: int) -> Trial:
    """Sends requests at a Poisson rate for `seconds`, with the limit as their latency budget."""
    random = np.random.default_rng(seed)
    due_s = arrival_times(Arrivals(), rate, seconds, random)
    target = Target(known.url, known.headers)
    bodies: dict[int, bytes] = {}
    count = len(known.bodies)
    load = load_of(target, due_s, seconds, lambda i: known.bodies[i % count], budget_s=limit_s, prepare=True)
    outcome = run(target, load, Limits(grace_s=GRACE_S), bodies)
    in_time = outcome.answered & (outcome.latency_s <= limit_s)
    right = sum(known.right(index, bodies[index]) for index in np.flatnonzero(in_time).tolist())
    answered = outcome.latency_s[outcome.answered]
    _until_idle(known)
    return Trial(
        rate,
        due_s.size,
        right / max(1, due_s.size),
        float(np.isin(outcome.status, (429, 503, 504)).mean()),
        float(np.quantile(answered, SHARE)) if answered.size else np.inf,
        float(np.quantile(outcome.lag_s[np.isfinite(outcome.lag_s)], SHARE)),
    )


def _until_idle(known: Known) -> None:
    """Waits until the server has finished a trial's backlog, which is when it answers another request."""
    closed(known, 1, 0.0)
