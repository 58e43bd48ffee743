"""Locates the hottest rows of each table in host memory by arithmetic, without a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrec.models.embeddings.lookups import FusedRows
from polyrec.models.schema.batch import I64, Batch
from polyrec.models.tiers.layout import HOST, TierLayout
from polyrec.models.tiers.prefix.prefix import Prefix


class NearRows:
    """Locates the hottest rows of each table with one comparison and one addition per block of a batch.

    They are contiguous in host memory. If the rank of a single-valued feature is below a limit, its address
    is the rank plus a constant. Tests compare it with `RowLocations.locate`, which locates any rows.
    fused: positions of the features' tables in the fused weight.
    """

    def __init__(self, layout: TierLayout, prefix: Prefix | None, fused: FusedRows) -> None:
        self._prefix = prefix
        self._bases = fused.bases("context"), fused.bases("candidate")
        self._range = [layout.segments(own) for own in self._bases]
        near = [layout.tier[own] == HOST for own in self._range]
        self._limits = [layout.counts[own] * host for own, host in zip(self._range, near, strict=True)]
        self._first = [
            layout.local(own, ranges) for own, ranges in zip(self._bases, self._range, strict=True)
        ]
        self._ranges = [np.bincount(own, minlength=layout.tier.size) for own in self._range]

    def others(self, batch: Batch) -> I64 | None:
        """Returns the lookups of a batch whose rows are elsewhere, int64 [n]; None for batches with bags.

        Lookups are numbered as in `rows`. `RowLocations` may find some of them in memory too, as in a cache.
        """
        context, candidate = batch.context, batch.candidate
        if context.bag_values.size or candidate.bag_values.size:
            return None
        first, second = self._limits
        prefix = self._prefix
        if prefix is not None and prefix.released:
            first, second = map(np.minimum, self._limits, self._below(prefix.ends))
        far = np.empty(context.ranks.size + candidate.ranks.size, bool)
        _apply(np.greater_equal, batch, (first, second), far)
        return far.nonzero()[0]

    def addresses(self, batch: Batch, out: I64) -> None:
        """Writes the host memory addresses of a batch's rows, int64 [lookups]; wrong ones for `others`."""
        _apply(np.add, batch, self._first, out)

    def rows(self, batch: Batch) -> I64:
        """Returns the rows of the fused weight that a batch looks up, contexts first, int64 [lookups]."""
        out = np.empty(batch.context.ranks.size + batch.candidate.ranks.size, np.int64)
        _apply(np.add, batch, self._bases, out)
        return out

    def lookups(self, batch: Batch) -> I64:
        """Returns the number of lookups in each range of the layout, of a batch without `others`."""
        first, second = self._ranges
        return batch.context.rows * first + batch.candidate.rows * second

    def colder(self, batch: Batch) -> int:
        """Returns `Prefix.hits` of a batch without `others`, if nothing was released since."""
        assert self._prefix is not None
        first, second = self._below(self._prefix.colder)
        context, candidate = batch.context.ranks, batch.candidate.ranks
        return int(np.count_nonzero(context >= first) + np.count_nonzero(candidate >= second))

    def _below(self, ends: I64) -> list[I64]:
        """Returns the first rank of each feature that is not below a row. ends: int64 [ranges], rows."""
        return [ends.take(own) - bases for own, bases in zip(self._range, self._bases, strict=True)]


def _apply(function: np.ufunc, batch: Batch, constants: Sequence[I64], out: NDArray[Any]) -> None:
    """Writes the function of each rank and its feature's constant, for both blocks. out: [lookups]."""
    context, candidate = batch.context.ranks, batch.candidate.ranks
    function(context, constants[0], out[: context.size].reshape(context.shape))
    function(candidate, constants[1], out[context.size :].reshape(candidate.shape))
