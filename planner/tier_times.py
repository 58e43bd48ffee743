"""Measured batches of a path whose rows lie in tiers, and the cost model fitted to them.

A batch takes its time with all rows in memory, and in addition, on average,

    batch_s + lookup_s * lookups
    + below_batch_s * any(below) + below_s * below
    + wait_s * rounds + read_s * reads                  if it waits for its reads
    + ahead_batch_s * any(below) + ahead_s * reads      if they were started while it was queued
    + remote_batch_s * any(remote) + remote_s * remote

`lookups` are all of a batch, `below` those beyond the static prefix, found through the cache's index; `reads`
pages of the file; `any(n) = 1 - exp(-n)` is the chance that a batch has one at all. Reads of a batch run side
by side, so it waits for one round of them, any(reads), and for further ones only if it needs more pages than
the cache has slots for. Remote rows come in one request.
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
"""Coefficients of TierCost in seconds."""


@dataclass(frozen=True, slots=True)
class BatchReads:
    """Mean numbers of one batch, see above; `rounds` of reads is below 1 where many batches read nothing.

    certain: the numbers are of one batch rather than means, so that any(n) is 1 or 0.
    """

    lookups: float
    below: float = 0.0
    reads: float = 0.0
    rounds: float = 0.0
    remote: float = 0.0
    certain: bool = False

    def multiples(self, ahead: bool) -> tuple[float, ...]:
        """Returns what each of TIMES is multiplied by. ahead: whether its reads were started before."""
        waits = not ahead
        below, remote = (float(n > 0) if self.certain else any_of(n) for n in (self.below, self.remote))
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


def any_of(mean: float) -> float:
    """Returns the chance of at least one of independent events, `mean` on average."""
    return -math.expm1(-mean)


class TierCost(Strict):
    """Seconds that tiers add to a batch, see above.

    cached: what a slot of the cache is worth, in rows of a static prefix that continues with the next
    hottest rows: below 1, as a cache spends slots on learning which rows are hot.
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
        """Seconds in addition to those with all rows in memory. ahead: its reads were started before."""
        times: list[float] = [getattr(self, name) for name in TIMES]
        return sum(s * n for s, n in zip(times, batch.multiples(ahead), strict=True))


class CutPoint(Strict):
    """Batches of `rows` rows at one cut.

    memory_bytes: of rows and cache in memory; the other rows are on disk, or in the remote store beyond
    `near_rows` of each table, if given. ahead: the reads of a batch were started two batches earlier, by the
    lane itself, which is part of `seconds`. seconds, memory_s: mean of a batch, and of one with all rows in
    memory, medians over rounds in turns. The others are means of a batch, see above.
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

    page_bytes: what the disk reads at least. reader: io_uring or threads. error: median relative error of
    predicted batch times, each cut predicted from the others.
    """

    path: str
    row_bytes: Positive
    page_bytes: Positive
    reader: str
    points: tuple[CutPoint, ...]
    cost: TierCost
    error: Real | None = None
