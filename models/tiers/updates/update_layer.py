"""Overlays updated rows on the tiers until they are written into them.

A reader sees a layer completely or not at all; its rows replace those of the tiers. So one assignment makes
an update visible atomically, whichever tiers it touches, and the tiers can be written later.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.slab import Bytes
from polyrec.models.tiers.updates.last import last_of_equal


class UpdateLayer:
    """Updated rows over the tiers.

    rows: int64 [n], rows of the fused weight. values: uint8 [n, bytes per row]. If a row repeats, its last
    values count.
    """

    def __init__(self, row_format: RowFormat, rows: I64, values: Bytes) -> None:
        last, kept = last_of_equal(rows, values)
        if last is rows:
            # copy, because the caller may change its arrays
            last, kept = rows.copy(), values.copy()
        self.rows: I64 = last
        self.values: Bytes = kept
        self._units: Tensor = torch.from_numpy(self.values).view(row_format.unit)
        # most lookups are not in a layer; a mask by low bits rules most of them out
        self._mask = (1 << max(int(4 * last.size).bit_length(), 10)) - 1
        self._maybe: NDArray[np.bool_] = np.zeros(self._mask + 1, bool)
        self._maybe[last & self._mask] = True

    def find(self, rows: I64) -> tuple[I64, I64]:
        """Returns (indices of `rows` that the layer has, their positions in the layer)."""
        where = np.flatnonzero(self._maybe[rows & self._mask])
        if not where.size:
            return where, where
        wanted = rows[where]
        place = np.minimum(np.searchsorted(self.rows, wanted), self.rows.size - 1)
        found = self.rows[place] == wanted
        return np.compress(found, where), np.compress(found, place)

    def copy(self, place: I64, at: I64, out: Tensor) -> None:
        """Copies rows of the layer, by position, to out[at]. place, at: int64 [n]."""
        if at.size:
            values = self._units[torch.from_numpy(place)].to(out.device)
            out.index_copy_(0, torch.from_numpy(at).to(out.device), values)

    def over(self, rows: I64, out: Tensor) -> I64:
        """Replaces the updated rows among `rows` [n] in out [n, units]; returns their indices."""
        where, place = self.find(rows)
        self.copy(place, where, out)
        return where
