"""Counts lookups of the out-of-vocabulary row by feature.

Counting takes a few array operations that cost about as much for one batch as for ten, so several batches are
counted together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from polyrec.models.schema.batch import I64, Batch
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import RoleLayout
from polyrec.server.metrics.instruments import Counter, Family

Lookups = tuple[I64, I64, I64, I64, I64, I64]
"""Lookups of a batch: ranks, bag_values and bag_offsets of the context block, then of the candidate block."""
Arrays = Sequence[I64]


def lookups_of(batch: Batch) -> Lookups:
    """Returns the lookups of a batch."""
    context, candidate = batch.context, batch.candidate
    return (
        *(context.ranks, context.bag_values, context.bag_offsets),
        *(candidate.ranks, candidate.bag_values, candidate.bag_offsets),
    )


def rows_of(lookups: Lookups) -> int:
    """Returns the number of rows of the batch."""
    return len(lookups[3])


def count_of(lookups: Lookups) -> int:
    """Returns the number of lookups."""
    ranks, values, _, more_ranks, more_values, _ = lookups
    return ranks.size + values.size + more_ranks.size + more_values.size


class UnknownIdCounter:
    """Counters of one schema's features. encoder: encoder of batches that come without their own."""

    def __init__(self, encoder: Encoder, counters: Family[Counter]) -> None:
        self._counters = counters
        self._default = encoder
        self._bind(encoder)

    def _bind(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._context = RoleCounter(encoder, encoder.schema.context, self._counters)
        self._candidate = RoleCounter(encoder, encoder.schema.candidate, self._counters)

    def count(self, encoders: Sequence[Encoder | None], looked_up: Sequence[Lookups]) -> None:
        """Counts the lookups of batches. encoders: encoder of each batch, None for the path's own."""
        for encoder, run in groupby(
            zip(encoders, looked_up, strict=True), lambda one: one[0] or self._default
        ):
            if encoder is not self._encoder:
                self._bind(encoder)
            columns = tuple(zip(*(lookups for _, lookups in run), strict=True))
            self._context.count(*columns[:3])
            self._candidate.count(*columns[3:])


class RoleCounter:
    """Counters of one role's features."""

    def __init__(self, encoder: Encoder, layout: RoleLayout, counters: Family[Counter]) -> None:
        self._single_oov: I64 = np.array([encoder.vocabulary(f).oov_rank for f in layout.singles], np.int64)
        self._bag_oov: I64 = np.array([encoder.vocabulary(f).oov_rank for f in layout.bags], np.int64)
        self._singles = [counters.labels(f.name) for f in layout.singles]
        self._bags = [counters.labels(f.name) for f in layout.bags]

    def count(self, ranks: Arrays, values: Arrays, offsets: Arrays) -> None:
        """Counts the lookups of blocks, given their ranks, bag_values and bag_offsets."""
        if self._singles:
            missed = np.concatenate(ranks) == self._single_oov
            if missed.any():
                _add(self._singles, missed.sum(axis=0))
        if self._bags and any(ids.size for ids in values):
            _add(self._bags, np.bincount(self._missed(values, offsets), minlength=len(self._bags)))

    def _missed(self, bag_values: Arrays, bag_offsets: Arrays) -> I64:
        """Returns the feature of each unknown value."""
        values = np.concatenate(bag_values)
        # between the last offset of a block and the first of the next there is no bag
        ends = np.cumsum([offsets.size for offsets in bag_offsets[:-1]], dtype=np.int64) - 1
        lengths: I64 = np.delete(np.diff(np.concatenate(bag_offsets)), ends).astype(np.int64, copy=False)
        feature: I64 = np.repeat(np.arange(lengths.size) % len(self._bags), lengths)
        missed: I64 = feature[values == self._bag_oov[feature]]
        return missed


def _add(counters: list[Counter], counts: I64) -> None:
    for counter, count in zip(counters, counts.tolist(), strict=True):
        counter.inc(count)
