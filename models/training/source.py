"""The rows that training draws, window by window.

Rows that can be read in any order are one window; a stream is as many as it takes, and rows are shuffled
within each (models/training/stream.py). The steps of one window that covers everything are the same for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from polyrec.models.schema.batch import F32, I64, Batch


class TrainingRows(Protocol):
    """Encoded data, like models/data/encoded.py's EncodedRows."""

    label: F32
    group: I64 | None

    def batch(self, rows: I64) -> Batch: ...


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of encoded data, which can be read in any order. rows: int64, indices into `data`."""

    data: TrainingRows
    rows: I64

    @property
    def size(self) -> int:
        return int(self.rows.size)

    @property
    def label(self) -> F32:
        """Labels, float32 [size]."""
        return self.data.label[self.rows]

    @property
    def base_rate(self) -> float:
        return float(self.label.mean(dtype=np.float64))

    def windows(self, first: int = 0) -> Iterator[Rows]:
        """Yields itself."""
        if not first:
            yield self


class RowSource(Protocol):
    """Training rows in windows, the same ones in every pass."""

    @property
    def size(self) -> int:
        """Rows of all windows."""
        ...

    @property
    def base_rate(self) -> float:
        """Share of clicks among the rows."""
        ...

    def windows(self, first: int = 0) -> Iterator[Rows]:
        """Yields the windows from number `first` on."""
        ...
