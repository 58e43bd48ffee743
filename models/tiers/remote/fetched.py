"""Holds remote rows that were fetched for one batch before it is gathered."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.slab import Bytes
from polyrec.models.tiers.updates.last import last_of_equal

store_clock = time.monotonic
"""Clock of deadlines of requests to the remote store.

It is here and not in remote.py, which imports redis-py."""


@dataclass(frozen=True, slots=True, eq=False)
class FetchedRows:
    """Remote rows fetched for one batch.

    rows: int64 [n], n > 0, distinct rows of the fused weight, ascending.
    values: uint8 [n, bytes per row].
    lost: bool [n], rows that the store did not return, whose values are the out-of-vocabulary row's. The
    batch does not request them again, because its lane, and so hot queries, would wait for the store.
    """

    rows: I64
    values: Bytes
    lost: NDArray[np.bool_]

    @classmethod
    def from_unsorted(cls, rows: I64, values: Bytes, lost: NDArray[np.bool_]) -> Self:
        """Creates it from rows in any order; of equal rows, the last that is not lost counts."""
        if (rows[1:] > rows[:-1]).all():
            return cls(rows, values, lost)
        if lost.any():
            # lost rows first, so that the last of equal rows is one that came
            order = np.argsort(~lost, kind="stable")
            rows, values, lost = rows[order], values[order], lost[order]
        distinct, last = last_of_equal(rows, np.arange(rows.size))
        return cls(distinct, values.take(last, 0), lost.take(last))

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        """Returns the rows of all parts."""
        if len(parts) == 1:
            return parts[0]
        return cls.from_unsorted(
            np.concatenate([p.rows for p in parts]),
            np.concatenate([p.values for p in parts]),
            np.concatenate([p.lost for p in parts]),
        )

    def find(self, rows: I64) -> tuple[NDArray[np.bool_], I64]:
        """Returns (bool [n], which of `rows` are here; their positions)."""
        place = np.minimum(self.rows.searchsorted(rows), self.rows.size - 1)
        found = self.rows.take(place) == rows
        return found, place[found]

    def copy(self, place: I64, at: I64, out: Tensor) -> None:
        """Copies rows by position to out[at], on the host. place, at: int64 [n]."""
        out.view(torch.uint8).numpy()[at] = self.values.take(place, 0)
