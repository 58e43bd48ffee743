"""Access counts of one table by rank, run-length encoded.

Most rows of a large table have the same count as their neighbors, so a million rows of a Zipf distribution
are about a thousand runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from polyrec.models.schema.batch import F64, I64


@dataclass(frozen=True, eq=False)
class RankedAccesses:
    """Runs of equally accessed rows.

    accesses: float64 [runs], per row, never increasing. rows: int64 [runs].
    """

    accesses: F64
    rows: I64

    @classmethod
    def from_counts(cls, counts: I64 | F64) -> RankedAccesses:
        """Encodes accesses by rank, [rows], never increasing."""
        starts = np.flatnonzero(np.append(True, counts[1:] != counts[:-1])[: counts.size])
        return cls(counts[starts].astype(np.float64), np.diff(np.append(starts, counts.size)))

    @cached_property
    def size(self) -> int:
        """Number of rows."""
        return int(self.rows.sum())

    @cached_property
    def total(self) -> float:
        """Accesses of all rows."""
        return float(self.accesses @ self.rows)

    @cached_property
    def _ends(self) -> I64:
        return np.cumsum(self.rows)

    @cached_property
    def _covered(self) -> F64:
        return np.append(0.0, np.cumsum(self.accesses * self.rows))

    def before(self, rank: int) -> float:
        """Returns the accesses of all rows before a rank."""
        if rank >= self.size:
            return self.total
        run = int(np.searchsorted(self._ends, rank, side="right"))
        start = int(self._ends[run - 1]) if run else 0
        return float(self._covered[run] + (rank - start) * self.accesses[run])

    def until(self, rank: int) -> RankedAccesses:
        """Returns the rows before a rank."""
        rows = np.clip(rank - (self._ends - self.rows), 0, self.rows)
        return RankedAccesses(self.accesses[rows > 0], rows[rows > 0])

    def beyond(self, rank: int) -> RankedAccesses:
        """Returns the rows from a rank on."""
        rows = np.clip(self._ends - rank, 0, self.rows)
        return RankedAccesses(self.accesses[rows > 0], rows[rows > 0])

    def scaled(self, factor: float) -> RankedAccesses:
        """Returns the same rows with `factor` times the accesses."""
        return RankedAccesses(self.accesses * factor, self.rows)
