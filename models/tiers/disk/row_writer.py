"""Writes rows to places of a file, many with one system call.

A loop over `os.pwrite` would give the interpreter lock away and wait for it again at every row: with a lane
that computes, up to 5 ms each time.
"""

from __future__ import annotations

import numpy as np

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.disk.reads import Kind, open_writer
from polyrec.models.tiers.slab import Bytes

ROWS = 256
"""Rows of a system call; as many are held in memory."""


class RowWriter:
    """Writes rows of `row_bytes` to an open file. Not thread-safe."""

    def __init__(self, file: int, row_bytes: int, kind: Kind | None = None) -> None:
        self._rows: Bytes = np.empty((ROWS, row_bytes), np.uint8)
        self._places = np.arange(ROWS) * row_bytes
        self._writer = open_writer(file, self._rows.reshape(-1), kind)

    def write(self, offsets: I64, values: Bytes) -> None:
        """Writes values [n, row_bytes] at offsets [n] of the file, distinct. Raises OSError."""
        for first in range(0, offsets.size, ROWS):
            part = offsets[first : first + ROWS]
            self._rows[: part.size] = values[first : first + ROWS]
            self._writer.wait(self._writer.submit(part, self._places[: part.size], self._rows.shape[1]))

    def close(self) -> None:
        self._writer.close()
