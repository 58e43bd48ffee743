"""Defines sources of training rows, which are drawn window by window.

Rows that can be read in any order are a single window. A stream has any number of windows and is shuffled
within each (models/training/stream.py). A stream with one window that covers everything gives the same steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from polyrec.models.schema.batch import F32, I64, Batch


class TrainingRows(Protocol):
    """Encoded data, such as `EncodedRows` of models/data/encoded.py."""

    label: F32
    group: I64 | None

    def batch(self, rows: I64) -> Batch: ...


@dataclass(frozen=True, slots=True)
class Rows:
    """A selection of encoded data that can be read in any order. rows: int64, indices into `data`."""

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
        """Yields itself, the only window."""
        if not first:
            yield self


class RowSource(Protocol):
    """Training rows in windows, the same in every pass."""

    @property
    def size(self) -> int:
        """Number of rows in all windows."""
        ...

    @property
    def base_rate(self) -> float:
        """Share of clicks among the rows."""
        ...

    def windows(self, first: int = 0) -> Iterator[Rows]:
        """Yields the windows, starting at number `first`."""
        ...
