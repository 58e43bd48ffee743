"""Makes outcomes of runs for tests, with a tuple per request and without a server."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyrec.loadtest.results.outcome import NO_PATH, Outcome


def outcome_of(
    due_s: Sequence[float],
    latency_s: Sequence[float] | float = 0.005,
    *,
    status: Sequence[int] | int = 200,
    rows: Sequence[int] | int = 10,
    path: Sequence[int] | int = 0,
    paths: tuple[str, ...] = ("good@cpu", "fast@cpu"),
    budget_s: float = 0.01,
    degraded: Sequence[bool] | bool = False,
    seconds: float | None = None,
) -> Outcome:
    """A run of len(due_s) requests; what is given once holds for all."""
    n = len(due_s)
    codes = np.broadcast_to(np.asarray(status, np.int64), n).copy()
    chosen = np.broadcast_to(np.asarray(path, np.int16), n).copy()
    chosen[(codes < 200) | (codes >= 300)] = NO_PATH
    return Outcome(
        due_s=np.asarray(due_s, np.float64),
        lag_s=np.zeros(n),
        latency_s=np.broadcast_to(np.asarray(latency_s, np.float64), n).copy(),
        status=codes,
        rows=np.broadcast_to(np.asarray(rows, np.int64), n).copy(),
        budget_s=np.full(n, budget_s),
        path=chosen,
        paths=paths,
        degraded=np.broadcast_to(np.asarray(degraded, bool), n).copy(),
        errors={},
        begin_s=0.0,
        end_s=seconds if seconds is not None else (float(due_s[-1]) if n else 0.0) + 1e-9,
        connections=1,
        held_back=0,
    )
