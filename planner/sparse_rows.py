"""Builds the constraints of a linear or mixed-integer program row by row and entry by entry."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from scipy.sparse import csr_array


class SparseRows:
    """A sparse matrix with a limit per row; columns are variables. limits: limits of the first rows."""

    def __init__(self, limits: Iterable[float] = ()) -> None:
        self.limits = list(limits)
        self._rows: list[int] = []
        self._columns: list[int] = []
        self._values: list[float] = []

    def row(self, limit: float) -> int:
        """Adds an empty row; returns its index."""
        self.limits.append(limit)
        return len(self.limits) - 1

    def put(self, row: int, column: int, value: float) -> None:
        """Adds a value to an entry."""
        self._rows.append(row)
        self._columns.append(column)
        self._values.append(value)

    def matrix(self, columns: int, rows: int | None = None) -> csr_array:
        """Returns the matrix, float [rows, columns]. rows: number of leading rows, None for all."""
        row, column, value = np.array(self._rows), np.array(self._columns), np.array(self._values)
        if rows is None:
            rows = len(self.limits)
        else:
            kept = row < rows
            row, column, value = row[kept], column[kept], value[kept]
        return csr_array((value, (row, column)), shape=(rows, columns))
