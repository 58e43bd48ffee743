"""How many values of requests the vocabulary lacks, by feature. Ranks of batches go in, counts come out.

Summing up is a few array operations, which cost about as much for one batch as for ten: so it is done over
some batches at once.
"""

from __future__ import annotations

import numpy as np

from models.batch import I64, Batch, Block
from models.encoder import Encoder
from models.schema import Layout
from server.instruments import Counter, Family


class Unknown:
    """The counts of one encoder's features. `add` keeps a batch's ranks, `flush` counts."""

    def __init__(self, encoder: Encoder, counters: Family[Counter]) -> None:
        self._counters = counters
        self._bind(encoder)

    def _bind(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._context = Role(encoder, encoder.schema.context, self._counters)
        self._candidate = Role(encoder, encoder.schema.candidate, self._counters)

    def follow(self, encoder: Encoder) -> None:
        """The next batches are in this encoder's order."""
        if encoder is not self._encoder:
            self.flush()
            self._bind(encoder)

    def add(self, batch: Batch) -> None:
        self._context.add(batch.context)
        self._candidate.add(batch.candidate)

    def flush(self) -> None:
        self._context.flush()
        self._candidate.flush()


class Role:
    """Context or candidate features.

    Of a batch only what is needed is kept: holding on to all of its arrays would make the next batch
    take fresh memory, which costs more than the counting.
    """

    def __init__(self, encoder: Encoder, layout: Layout, counters: Family[Counter]) -> None:
        self._single_oov: I64 = np.array([encoder.vocabulary(f).oov_rank for f in layout.singles], np.int64)
        self._bag_oov: I64 = np.array([encoder.vocabulary(f).oov_rank for f in layout.bags], np.int64)
        self._singles = [counters.labels(f.name) for f in layout.singles]
        self._bags = [counters.labels(f.name) for f in layout.bags]
        self._ranks: list[I64] = []
        self._values: list[I64] = []
        self._offsets: list[I64] = []

    def add(self, block: Block) -> None:
        if self._singles:
            self._ranks.append(block.ranks)
        if block.bag_values.size:
            self._values.append(block.bag_values)
            self._offsets.append(block.bag_offsets)

    def flush(self) -> None:
        if self._ranks:
            missed = np.concatenate(self._ranks) == self._single_oov
            if missed.any():
                _add(self._singles, missed.sum(axis=0))
            self._ranks.clear()
        if self._values:
            _add(self._bags, np.bincount(self._missed_in_bags(), minlength=len(self._bags)))
            self._values.clear()
            self._offsets.clear()

    def _missed_in_bags(self) -> I64:
        """The feature of each value that is unknown."""
        values = np.concatenate(self._values)
        # one block's offsets end where the next one's begin again: that step is no bag
        ends = np.cumsum([offsets.size for offsets in self._offsets[:-1]], dtype=np.int64) - 1
        lengths: I64 = np.delete(np.diff(np.concatenate(self._offsets)), ends).astype(np.int64, copy=False)
        feature: I64 = np.repeat(np.arange(lengths.size) % len(self._bags), lengths)
        missed: I64 = feature[values == self._bag_oov[feature]]
        return missed


def _add(counters: list[Counter], counts: I64) -> None:
    for counter, count in zip(counters, counts.tolist(), strict=True):
        counter.inc(count)
