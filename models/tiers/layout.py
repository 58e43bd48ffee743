"""Maps rows to the tier and address where they are stored, given the cuts of the tables.

Each table is cut into ranges of ranks, one per tier, hottest first; some may be empty. Within a tier the
ranges of all tables are concatenated, so a row's address in its tier is its row of the fused weight plus a
constant of its range. The range is found from an array that holds the first range of each block of rows, and
one step per boundary within the block. The disk tier's file contains all but the remote rows of every table
with rows on disk, so that it does not depend on the cuts above it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polyrec.models.schema.batch import I64

TIERS = ("device", "host", "disk", "remote")
DEVICE, HOST, DISK, REMOTE = range(4)
MAX_BLOCKS = 1 << 18
MAX_STEPS = 8
"""With more boundaries in a block, as with many small tables, a binary search is faster."""
SMALL = 512
"""So few rows are found faster by one binary search too: it is one array operation instead of five."""


class TierLayout:
    """The ranges of every table.

    sizes: rows of each table, in the order of the fused weight.
    cuts: table -> rows in each of TIERS, hottest first, which add up to the table's rows. A table left out is
    in host memory.
    Raises ValueError if a table is unknown or its cuts do not add up to its rows.
    """

    def __init__(self, sizes: Mapping[str, int], cuts: Mapping[str, Sequence[int]]) -> None:
        for table, rows in cuts.items():
            if table not in sizes:
                raise ValueError(f"tier cuts name table '{table}', which the model does not have")
            if len(rows) != len(TIERS) or min(rows) < 0 or sum(rows) != sizes[table]:
                by_tier = dict(zip(TIERS, rows, strict=False))
                raise ValueError(f"table '{table}' has {sizes[table]} rows, its tier cuts are {by_tier}")
        self.tables = tuple(sizes)
        self.cuts = {t: tuple(cuts.get(t, (0, n, 0, 0))) for t, n in sizes.items()}
        self.sizes = tuple(sizes.values())
        self.base = {t: int(b) for t, b in zip(sizes, np.cumsum((0, *self.sizes)), strict=False)}
        held = np.array([self.cuts[t] for t in self.tables], np.int64).reshape(-1, len(TIERS))
        self.rows = tuple(int(n) for n in held.sum(axis=0))
        self.total = sum(self.rows)
        starts = (np.cumsum(held.ravel()) - held.ravel()).reshape(held.shape)
        local = np.cumsum(held, axis=0) - held
        on_disk = np.where(held[:, DISK] > 0, held[:, :REMOTE].sum(axis=1), 0)
        filed = np.cumsum(on_disk) - on_disk
        local[:, DISK] = filed + held[:, :DISK].sum(axis=1)
        self.filed = {t: n for t, n in zip(self.tables, on_disk.tolist(), strict=True) if n}
        self.file_rows = int(on_disk.sum())
        used = held.ravel() > 0
        self.starts: I64 = starts.ravel()[used]
        self.tier: NDArray[np.int8] = np.tile(np.arange(len(TIERS), dtype=np.int8), len(held))[used]
        self.table: I64 = np.repeat(np.arange(len(held)), len(TIERS))[used]
        self._shift: I64 = (local - starts).ravel()[used]
        self.is_filed: NDArray[np.bool_] = np.repeat(held[:, DISK] > 0, len(TIERS))[used]
        base = np.array(list(self.base.values()), np.int64)
        self._filed_shift: I64 = np.repeat(filed - base, len(TIERS))[used]
        self.counts: I64 = held.ravel()[used]
        self._block = max(4, (self.total // MAX_BLOCKS).bit_length())
        first = np.arange((self.total >> self._block) + 1) << self._block
        last = np.minimum(first + (1 << self._block), max(self.total, 1)) - 1
        self._range_of_block: NDArray[np.int16] = self._searched(first).astype(np.int16)
        self._steps = int((self._searched(last) - self._range_of_block).max(initial=0))
        self._ends: I64 = np.append(self.starts[1:], self.total)

    def locate(self, rows: I64) -> tuple[NDArray[np.int8], I64]:
        """Returns (tier, address within the tier) of rows of the fused weight, int64 [n]."""
        segment = self.segments(rows)
        return self.tier[segment], rows + self._shift.take(segment)

    def local(self, rows: I64, segments: I64) -> I64:
        """Returns the address of each row within its tier. segments: the range of each row."""
        return rows + self._shift.take(segments)

    def filed_address(self, rows: I64, segments: I64) -> I64:
        """Returns the address of each row in the disk tier's file, regardless of its tier."""
        return rows + self._filed_shift.take(segments)

    def segments(self, rows: I64) -> I64:
        """Returns the range of each row, int64 [n], an index into `tier`, `table`, `starts` and `counts`."""
        if rows.size <= SMALL or self._steps > MAX_STEPS:
            return self._searched(rows)
        segments: I64 = self._range_of_block.take(rows >> self._block).astype(np.int64)
        for _ in range(self._steps):
            segments += rows >= self._ends.take(segments)
        return segments

    def _searched(self, rows: I64) -> I64:
        return self.starts.searchsorted(rows, "right") - 1

    def rows_of(self, tier: int) -> I64:
        """Returns every row of a tier in address order, int64 [rows[tier]]."""
        chosen = self.tier == tier
        counts, starts = self.counts[chosen], self.starts[chosen]
        first = np.repeat(starts - (np.cumsum(counts) - counts), counts)
        return first + np.arange(counts.sum())

    def ranges(self, tier: int) -> list[tuple[int, int]]:
        """Returns (first row, rows) of each range of a tier, in address order."""
        chosen = self.tier == tier
        return list(zip(self.starts[chosen].tolist(), self.counts[chosen].tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class RowLocations:
    """Locations of rows; all arrays are [n].

    rows: rows of the fused weight. segment: range of the layout. tier: index into TIERS. local: address
    within the tier.
    """

    rows: I64
    segment: I64
    tier: NDArray[np.int8]
    local: I64

    @staticmethod
    def locate(layout: TierLayout, rows: I64, prefix_ends: I64 | None = None) -> RowLocations:
        """Locates rows.

        prefix_ends: int64 [ranges], in each range the first row that is on disk although the layout puts it
        in memory; see polyrec.models.tiers.prefix.
        """
        segment = layout.segments(rows)
        if layout.rows[HOST] == layout.total:
            # a single tier, with the rows in the order of the fused weight
            return RowLocations(rows, segment, np.broadcast_to(np.int8(HOST), rows.shape), rows)
        tier, local = layout.tier.take(segment), layout.local(rows, segment)
        if prefix_ends is not None:
            released = np.flatnonzero(rows >= prefix_ends.take(segment))
            tier[released] = DISK
            local[released] = layout.filed_address(rows[released], segment[released])
        return RowLocations(rows, segment, tier, local)

    @property
    def in_memory(self) -> bool:
        """Whether all rows are in the memory of the host or of the device."""
        return int(self.tier.max(initial=0)) <= HOST

    def at(self, part: I64 | slice) -> RowLocations:
        return RowLocations(self.rows[part], self.segment[part], self.tier[part], self.local[part])

    def address(self, tier: int) -> I64:
        """Returns the addresses within one tier; rows of other tiers get 0, to be read and discarded."""
        address: I64 = self.local * (self.tier == tier)
        return address
