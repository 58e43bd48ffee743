"""Measured batches of a path whose rows lie in tiers, and the cost model fitted to them.

A batch takes its time with all rows in memory, and in addition, on average,

    batch_s + lookup_s * lookups
    + below_batch_s * any(below) + below_s * below
    + wait_s * rounds + read_s * reads                  if it waits for its reads
    + ahead_batch_s * any(below) + ahead_s * reads      if they were started while it was queued
    + remote_batch_s * any(remote) + remote_s * remote

`lookups` is the number of all lookups of a batch, `below` those beyond the static prefix (found through the
cache's index), and `reads` the pages read from the file. `any(n) = 1 - exp(-n)` is the probability that there
is at least one. Reads of a batch run in parallel, so it waits for one round, any(reads), and for further
rounds only if it needs more pages than the cache has slots. Remote rows come in one request.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from polyrec.models.files import Strict

Real = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]

TIMES = (
    *("batch_s", "lookup_s", "below_batch_s", "below_s", "wait_s", "read_s"),
    *("ahead_batch_s", "ahead_s", "remote_batch_s", "remote_s"),
)
"""Names of TierCost's coefficients in seconds."""


@dataclass(frozen=True, slots=True)
class BatchReads:
    """Mean counts per batch (see the module docstring). `rounds` is below 1 if many batches read nothing.

    certain: whether these are counts of a single batch instead of means, so that any(n) is 0 or 1.
    """

    lookups: float
    below: float = 0.0
    reads: float = 0.0
    rounds: float = 0.0
    remote: float = 0.0
    certain: bool = False

    def multiples(self, ahead: bool) -> tuple[float, ...]:
        """Returns the factor of each coefficient in TIMES. ahead: whether reads were started beforehand."""
        waits = not ahead
        below, remote = (
            float(n > 0) if self.certain else probability_of_any(n) for n in (self.below, self.remote)
        )
        return (
            1.0,
            self.lookups,
            below,
            self.below,
            self.rounds * waits,
            self.reads * waits,
            below * ahead,
            self.reads * ahead,
            remote,
            self.remote,
        )


def probability_of_any(mean: float) -> float:
    """Returns the probability of at least one event, if there are `mean` independent events on average."""
    return -math.expm1(-mean)


class TierCost(Strict):
    """Seconds that tiers add to a batch (see the module docstring).

    cached: worth of a cache slot, in rows of a longer static prefix. It is below 1, as a cache spends slots
        on learning which rows are hot.
    """

    batch_s: Real = 0.0
    lookup_s: Real = 0.0
    below_batch_s: Real = 0.0
    below_s: Real = 0.0
    wait_s: Real = 0.0
    read_s: Real = 0.0
    ahead_batch_s: Real = 0.0
    ahead_s: Real = 0.0
    remote_batch_s: Real = 0.0
    remote_s: Real = 0.0
    cached: Real = 1.0

    def seconds(self, batch: BatchReads, ahead: bool = False) -> float:
        """Returns the seconds added to a batch. ahead: whether its reads were started beforehand."""
        times: list[float] = [getattr(self, name) for name in TIMES]
        return sum(s * n for s, n in zip(times, batch.multiples(ahead), strict=True))


class CutPoint(Strict):
    """Measured batches of `rows` rows at one cut between memory and slow tiers.

    memory_bytes: rows and cache in memory. The other rows are on disk, or if `near_rows` is set, in the
        remote store beyond that many rows of each table.
    ahead: whether the lane itself started a batch's reads two batches earlier, which is part of `seconds`.
    seconds, memory_s: mean time of a batch, and of one with all rows in memory; medians over alternating
    rounds. The other fields are mean counts per batch (see the module docstring).
    """

    memory_bytes: Count
    near_rows: dict[str, Count] | None = None
    rows: Positive
    ahead: bool = False
    samples: Count
    seconds: Real
    memory_s: Real
    lookups: Real
    below: Real
    reads: Real
    remote: Real = 0.0


class CutTimes(Strict):
    """A path measured at several cuts of its rows.

    page_bytes: smallest unit that the disk reads.
    reader: io_uring or threads.
    error: median relative error of predicted batch times, with each cut predicted from the others.
    """

    path: str
    row_bytes: Positive
    page_bytes: Positive
    reader: str
    points: tuple[CutPoint, ...]
    cost: TierCost
    error: Real | None = None
