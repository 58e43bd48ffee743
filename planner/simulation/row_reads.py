"""Draws the misses of simulated queries, and how long their reads take.

A share of the queries is cold. Such a query misses a Poisson number of pages, and is read in the time of a
line by misses with lognormal noise, beside whatever the lanes execute.
"""

from __future__ import annotations

from math import exp, log

import numpy as np

from polyrec.planner.routing.latency.latency_table import TAIL_DEVIATIONS
from polyrec.planner.routing.query import NO_MISSES, Misses
from polyrec.planner.simulation.costs import RowReads


class DrawnReads:
    """The reads of one simulation. reads: None if all rows are at hand."""

    def __init__(self, reads: RowReads | None, queries: int, rng: np.random.Generator) -> None:
        self._reads = reads
        if reads is not None:
            cold = rng.random(queries) < reads.share
            self._pages: list[int] = (cold * (1 + rng.poisson(reads.misses - 1, queries))).tolist()
            noise = log(reads.tail) / TAIL_DEVIATIONS * rng.standard_normal(queries)
            self._noise: list[float] = noise.tolist()

    def misses(self, query: int) -> Misses:
        """The misses of a query, by its number."""
        return NO_MISSES if self._reads is None else Misses(disk=self._pages[query])

    def read_s(self, query: int) -> float:
        """Seconds until they have been read."""
        reads = self._reads
        if reads is None:
            return 0.0
        return (reads.read_s + reads.miss_s * self._pages[query]) * exp(self._noise[query])
