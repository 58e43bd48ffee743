"""Tracks, in bounded memory, which rows are popular while training.

A summary keeps counts of at most `capacity` rows, as Misra and Gries do: the count that does not fit is
subtracted from all counts, so a row's count is too small by at most lookups / (capacity + 1). Merged
summaries of several workers are summaries of all their lookups (Agarwal et al., PODS'12). Hotline counts in
hardware beside the memory (Adnan et al., ISCA'24); here only a share of the steps is counted.
"""

from __future__ import annotations

import numpy as np
import torch

from polyrec.models.schema.batch import F32, I64, index_type
from polyrec.models.training.workers.group import WorkerGroup

COUNTED_EVERY = 4
"""Steps of which one is counted."""
FIRST_CHOICE, CHOICE_EVERY = 8, 256
"""Steps after which popular rows are chosen: the first time, twice as many the next time, ... up to these."""
PLACES = 2
"""Rows that are counted, for each one that may be replicated."""
DECAY = 0.5
"""Weight of older lookups after each choice."""


class PopularityTracker:
    """Counts lookups and chooses the popular rows, the same on all workers.

    chosen_rows: number of rows to choose, of `total`. rows: int64, rows counted now, ascending. counts:
    float32, of each.
    """

    def __init__(self, chosen_rows: int, total: int) -> None:
        self.chosen_rows, self.capacity = chosen_rows, PLACES * chosen_rows
        # ids and counts travel in one message, so both have the same width
        self._id_type = index_type(total)
        self._count_type = np.float32 if self._id_type is np.int32 else np.float64
        self.rows, self.counts = np.zeros(0, np.int64), np.zeros(0, np.float32)
        self._waiting: list[I64] = []

    def counts_step(self, step: int) -> bool:
        """Returns whether the lookups of a step (from 0) are counted."""
        return step % COUNTED_EVERY == 0

    def is_choice_step(self, step: int) -> bool:
        """Returns whether popular rows are to be chosen before a step (from 0)."""
        doubled = step >= FIRST_CHOICE and step & (step - 1) == 0
        return step > 0 and (step % CHOICE_EVERY == 0 or (doubled and step < CHOICE_EVERY))

    def add(self, rows: I64) -> None:
        """Counts lookups, int64 [any]."""
        self._waiting.append(rows)
        # merge rarely, because merging costs as much as sorting both
        if sum(part.size for part in self._waiting) >= self.capacity:
            self._merge()

    def _merge(self) -> None:
        rows, counts = np.unique(np.concatenate([self.rows[:0], *self._waiting]), return_counts=True)
        self._waiting = []
        both = np.concatenate((self.rows, rows)), np.concatenate((self.counts, counts.astype(np.float32)))
        self.rows, self.counts = summary(*both, self.capacity)

    def choose(self, group: WorkerGroup) -> I64:
        """Returns the most popular rows, int64 [at most `chosen_rows`].

        Every worker must call it and gets the same rows. Older lookups count less from now on.
        """
        self._merge()
        own_counts = self.counts.astype(self._count_type).view(self._id_type)
        own = np.stack((self.rows.astype(self._id_type), own_counts), axis=1)
        found = torch.cat(group.gather(torch.from_numpy(own))).numpy()
        counts: F32 = found[:, 1].copy().view(self._count_type).astype(np.float32)
        rows, _ = summary(found[:, 0].astype(np.int64), counts, self.chosen_rows)
        self.counts *= np.float32(DECAY)
        return rows


def summary(rows: I64, counts: F32, capacity: int) -> tuple[I64, F32]:
    """Returns at most `capacity` distinct rows, ascending, and their counts.

    rows: int64; counts of repeated rows are added. If there are more, the greatest count that does not fit is
    subtracted from all.
    """
    distinct, place = np.unique(rows, return_inverse=True)
    summed = np.bincount(place, weights=counts, minlength=distinct.size)
    if distinct.size > capacity:
        summed -= np.partition(summed, -capacity - 1)[-capacity - 1]
        kept = summed > 0
        distinct, summed = distinct[kept], summed[kept]
    return distinct, summed.astype(np.float32)
