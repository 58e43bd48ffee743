"""Draws random arrival times from a description of the arrival process (planner/traffic.py).

Every kind except a trace is a Poisson process with varying rate. Its events are those of a unit-rate process,
mapped through the inverse of the expected cumulative count, which is piecewise linear. So one method draws
all kinds exactly, without a loop over queries.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from polyrec.models.schema.batch import F64
from polyrec.planner.traffic import Arrivals, TrafficError

SINE_KNOTS = 256
MAX_QUERIES = 1e8


def arrival_times(arrivals: Arrivals, rate: float, seconds: float, rng: np.random.Generator) -> F64:
    """Returns ascending times in [0, seconds): float64 [n] with random n.

    rate: mean queries per second; for `step`, the rate outside the step.
    Raises TrafficError for a bad trace, and for more than MAX_QUERIES queries or rate changes.
    """
    if arrivals.kind == "trace":
        return _trace(arrivals, rate, seconds)
    peak = max(arrivals.factor, 1.0) if arrivals.kind != "poisson" else 1.0
    if not seconds * max(rate * peak, 1 / arrivals.period_s, 1 / arrivals.burst_s) <= MAX_QUERIES:
        raise TrafficError(
            f"{rate:g} queries/s for {seconds:g} s are more than {MAX_QUERIES:,.0f} queries: ask for less"
        )
    at, expected = _expected(arrivals, rate, seconds, rng)
    n = rng.poisson(expected[-1])
    times: F64 = np.interp(np.sort(rng.random(n)) * expected[-1], expected, at)
    return times


def _expected(arrivals: Arrivals, rate: float, seconds: float, rng: np.random.Generator) -> tuple[F64, F64]:
    """Returns knots of the expected cumulative number of arrivals: times from 0 to `seconds`, and counts."""
    if arrivals.kind == "diurnal":
        knots = max(2, int(SINE_KNOTS * seconds / arrivals.period_s))
        at = np.linspace(0.0, seconds, knots + 1)
        swing, turn = 1 - 1 / arrivals.factor, 2 * np.pi / arrivals.period_s
        return at, rate * (at - swing * np.sin(turn * at) / turn)
    if arrivals.kind == "step":
        inner = np.asarray([arrivals.start_s, arrivals.start_s + arrivals.burst_s])
        at = np.concatenate([[0.0], inner[(inner > 0) & (inner < seconds)], [seconds]])
        rates = np.where((at[:-1] >= inner[0]) & (at[:-1] < inner[1]), arrivals.factor, 1.0) * rate
    elif arrivals.kind == "bursty":
        at, rates = _two_state_chain(arrivals, rate, seconds, rng)
    else:
        at, rates = np.asarray([0.0, seconds]), np.asarray([rate])
    return at, np.concatenate([[0.0], np.cumsum(rates * np.diff(at))])


def _two_state_chain(
    arrivals: Arrivals, rate: float, seconds: float, rng: np.random.Generator
) -> tuple[F64, F64]:
    """Returns the times at which a two-state Markov chain changes state, and the rates between them."""
    burst, calm = arrivals.burst_s, arrivals.period_s - arrivals.burst_s
    low = rate * arrivals.period_s / (calm + arrivals.factor * burst)
    bursting = rng.random() < burst / arrivals.period_s
    at, rates, now = [0.0], [], 0.0
    while now < seconds:
        now += rng.exponential(burst if bursting else calm)
        at.append(min(now, seconds))
        rates.append(low * arrivals.factor if bursting else low)
        bursting = not bursting
    return np.asarray(at), np.asarray(rates)


def _trace(arrivals: Arrivals, rate: float, seconds: float) -> F64:
    """Returns the times in a trace file, relative to its first, scaled to the rate, up to `seconds`."""
    file = Path(arrivals.file or "")
    try:
        times = np.load(file, allow_pickle=False) if file.suffix == ".npy" else np.loadtxt(file, ndmin=1)
    except OSError as e:
        raise TrafficError(f"cannot read trace '{file}': {e.strerror or e}") from None
    except ValueError as e:
        raise TrafficError(f"trace '{file}' is not a list of seconds: {' '.join(str(e).split())}") from None
    if times.ndim != 1 or times.size < 2 or times.dtype.kind not in "fiu" or not np.isfinite(times).all():
        raise TrafficError(f"trace '{file}': needs two or more times in seconds, one a line")
    times = np.sort(times.astype(np.float64))
    length = times[-1] - times[0]
    if length <= 0:
        raise TrafficError(f"trace '{file}': all its times are the same")
    stretched: F64 = (times - times[0]) * ((times.size - 1) / length / rate)
    return stretched[stretched < seconds]
