"""Provides a table of float rows in bounded memory and a file, for use without a model.

It uses the storage that serves models, with one table: the hottest rows by given counts and a cache in
memory, and all rows in a file.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import numpy as np
import torch
from numpy.typing import NDArray

from polyrec.models.schema.batch import F32, I64
from polyrec.models.tiers.figures import Figures
from polyrec.models.tiers.opening import WeightRows, open_stack
from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.slab import Bytes
from polyrec.models.tiers.tier_settings import CACHED, PAGE_BYTES, TierCuts, TierSettings

MIN_BYTES = 4 * PAGE_BYTES


class TieredTable:
    """Rows of one table, found by id. Thread-safe; close it after use, or use it in a `with` block.

    rows: float32 [n, width], such as a `numpy.memmap`; copied when opened.
    memory_bytes: limit of the rows in memory, cache and index together.
    directory: folder on a local disk. The file is unlinked, so it disappears with the process.
    counts: int64 [n], past lookups of each row; None: all memory is cache. Rows are found by their rank in
    these counts, which takes 8 bytes per row in addition to `memory_bytes`.
    Raises ValueError for shapes that do not match or less than 16 KiB, RuntimeUnavailable if no file can be
    written.
    """

    def __init__(
        self, rows: F32, memory_bytes: int, directory: str | Path, counts: I64 | None = None
    ) -> None:
        if rows.ndim != 2 or rows.dtype != np.float32 or not rows.size:
            raise ValueError(f"rows must be float32 [n, width], not {rows.dtype} {rows.shape}")
        if counts is not None and counts.shape != rows.shape[:1]:
            raise ValueError(f"counts must have the shape ({len(rows)},), not {counts.shape}")
        if memory_bytes < MIN_BYTES:
            raise ValueError(f"memory_bytes must be at least {MIN_BYTES}, not {memory_bytes}")
        total = len(rows)
        row_format = RowFormat(rows.shape[1], "fp32")
        order, self._rank = np.arange(0), None
        if counts is not None:
            order = np.argsort(-counts, kind="stable")
            self._rank = np.empty(total, np.int64)
            self._rank[order] = np.arange(total)

        def source(first: int, count: int) -> Bytes:
            part = slice(first, first + count)
            values = np.ascontiguousarray(rows[part] if counts is None else rows[order[part]])
            return values.view(np.uint8).reshape(-1, row_format.bytes)

        kept = total
        if memory_bytes < total * row_format.bytes:
            kept = 0 if counts is None else int(memory_bytes * (1 - CACHED)) // row_format.bytes
        settings = TierSettings(
            cuts={"rows": TierCuts(host=kept, disk=total - kept)},
            cache_bytes=max(memory_bytes - kept * row_format.bytes, PAGE_BYTES),
            directory=Path(directory),
        )
        by_rank = None if counts is None else [counts[order].astype(np.int64)]
        self._stack = open_stack(WeightRows(row_format, {"rows": total}, source), settings, counts=by_rank)

    def gather(self, ids: I64) -> F32:
        """Returns rows, float32 [n, width]. ids: int64 [n]. Raises IndexError, OSError."""
        stack = self._stack
        out = torch.empty((ids.size, stack.tiers.row_format.width))
        stack.gather(stack.views.newest, self._ranks(ids), out)
        values: F32 = out.numpy()
        return values

    def update(self, ids: I64, values: F32) -> None:
        """Replaces rows; later gathers see all the new values. ids: int64 [n]; values: float32 [n, width].

        If an id repeats, its last values count. The file is written in the background.
        """
        if values.shape != (ids.size, self._stack.tiers.row_format.width):
            raise ValueError(f"values must be [{ids.size}, width], not {values.shape}")
        if ids.size:
            packed = np.ascontiguousarray(values, np.float32).view(np.uint8).reshape(ids.size, -1)
            self._stack.update(self._ranks(ids), packed)

    def figures(self) -> Figures:
        """Returns lookups, hits, bytes and seconds so far, by tier."""
        return self._stack.figures()

    @property
    def memory_bytes(self) -> int:
        """Bytes of rows in memory, cache and index."""
        return self._stack.tiers.host_bytes

    def close(self) -> None:
        """Closes the file, after gathers in progress."""
        self._stack.close()

    def __enter__(self) -> TieredTable:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ranks(self, ids: I64) -> NDArray[np.int64]:
        total = self._stack.tiers.layout.total
        if ids.size and (ids.min() < 0 or ids.max() >= total):
            raise IndexError(f"ids must be 0 to {total - 1}")
        return ids if self._rank is None else self._rank[ids]
