"""Reads tiered rows in a process that does not own the tiers but maps their slab.

The owning process resolves each batch (`TierStack.resolve`). Most rows are in the slab, which both processes
map, so only their addresses are sent; updated rows and rows below host memory are sent as values.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from polyrec.models.embeddings.store import first_columns, pool_gathered
from polyrec.models.tiers.shared.resolved import NOTHING_FOUND, ResolvedRows
from polyrec.models.tiers.slab import Slab


class SlabReader:
    """A source of rows for one stage that returns a batch's rows in the order in which they were resolved.

    That is the order of `Lookups.in_order`. Without a batch, as during warm-up, every row is the slab's
    first.
    rows: rows of the fused weight. width: number of leading columns to return.
    """

    device = torch.device("cpu")

    def __init__(self, slab: Slab, rows: int, width: int | None = None) -> None:
        self._slab, self.rows = slab, rows
        self.row_format = slab.row_format
        self.width = width or self.row_format.width
        self._found: ResolvedRows = NOTHING_FOUND
        self._taken = 0
        self._buffer = torch.empty((0, self.row_format.units), dtype=self.row_format.unit)

    def begin(self, found: ResolvedRows) -> None:
        """Sets the rows of the next batch. Values outside the slab must stay valid until the batch ends."""
        self._found, self._taken = found, 0

    def gather(self, index: Tensor) -> Tensor:
        """Returns the next rows of the batch, float32 [n, width], valid until the next call.

        index: int64 [n]; only its length is used. Raises ValueError if fewer rows were resolved.
        """
        count, found = index.numel(), self._found
        if self._buffer.shape[0] < count:
            self._buffer = self.row_format.buffer(count)
        out = self._buffer[:count]
        if found is NOTHING_FOUND:
            self._slab.gather(np.zeros(count, np.int64), out)
        else:
            first, end = self._taken, self._taken + count
            if end > found.addresses.size:
                raise ValueError(f"row {end} of a batch is read, {found.addresses.size} were resolved")
            self._taken = end
            self._slab.gather(found.addresses[first:end], out)
            if found.at.size:
                inside = slice(*np.searchsorted(found.at, (first, end)))
                values = torch.from_numpy(found.values[inside]).view(self.row_format.unit)
                out.index_copy_(0, torch.from_numpy(found.at[inside] - first), values)
        return self.row_format.decode(first_columns(out, self.row_format.precision, self.width))

    def pool(self, index: Tensor, offsets: Tensor) -> Tensor:
        """Returns the sums of the next bags, float32 [bags, width]."""
        return pool_gathered(self.gather(index), offsets)
