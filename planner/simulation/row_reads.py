"""Draws the misses of simulated queries and the duration of their reads.

A share of the queries is cold. A cold query misses a Poisson number of pages. Reading them takes a time
linear in the misses with lognormal noise, concurrently with the lanes.
"""

from __future__ import annotations

from math import exp, log

import numpy as np

from polyrec.planner.routing.latency.latency_table import TAIL_DEVIATIONS
from polyrec.planner.routing.query import NO_MISSES, Misses
from polyrec.planner.simulation.costs import RowReads


class DrawnReads:
    """Draws the reads of one simulation. reads: None if all rows are in memory."""

    def __init__(self, reads: RowReads | None, queries: int, rng: np.random.Generator) -> None:
        self._reads = reads
        if reads is not None:
            cold = rng.random(queries) < reads.share
            self._pages: list[int] = (cold * (1 + rng.poisson(reads.misses - 1, queries))).tolist()
            noise = log(reads.tail) / TAIL_DEVIATIONS * rng.standard_normal(queries)
            self._noise: list[float] = noise.tolist()

    def misses(self, query: int) -> Misses:
        """Returns the misses of a query. query: its number."""
        return NO_MISSES if self._reads is None else Misses(disk=self._pages[query])

    def read_s(self, query: int) -> float:
        """Returns the seconds until a query's misses have been read."""
        reads = self._reads
        if reads is None:
            return 0.0
        return (reads.read_s + reads.miss_s * self._pages[query]) * exp(self._noise[query])
