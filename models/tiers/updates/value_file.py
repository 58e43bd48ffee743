"""Stores the values of updated rows in an unlinked file that grows.

A file instead of memory, so that the kernel can write back rows that are not in use.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from polyrec.models.tiers.slab import Bytes
from polyrec.models.tiers.updates.update import StoredTableUpdate

MIN_ROWS = 1024


class ValueFile:
    """Values of rows, of which all have the same length. directory: folder of the file.

    values: uint8 [rows, bytes of a row], those in use and room for more. Replaced when the file grows.
    """

    def __init__(self, directory: Path) -> None:
        self.values: Bytes = np.empty((0, 0), np.uint8)
        self._directory = directory
        self._file: int | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of a row; 0 before the first."""
        return int(self.values.shape[1])

    def make_room(self, rows: int, update: Mapping[str, StoredTableUpdate]) -> None:
        """Makes room for the rows of an update behind those in use. Raises OSError."""
        wanted = rows + sum(given.ids.size for given in update.values())
        if wanted <= len(self.values):
            return
        row_bytes = next(iter(update.values())).values.shape[1]
        if self._file is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            file, name = tempfile.mkstemp(".changes", "polyrec-", self._directory)
            os.unlink(name)
            self._file = file
        rows = max(wanted, 2 * len(self.values), MIN_ROWS)
        # allocate now: on a full disk this raises, while a write through the mapping would kill the process
        os.posix_fallocate(self._file, 0, rows * row_bytes)
        memory = mmap.mmap(self._file, rows * row_bytes)
        self.values = np.frombuffer(memory, np.uint8).reshape(rows, row_bytes)

    def close(self) -> None:
        """Discards all values."""
        self.values = np.empty((0, 0), np.uint8)
        if self._file is not None:
            os.close(self._file)
            self._file = None
