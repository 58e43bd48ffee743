"""Releases the static prefix to the cache, slot by slot, while batches are gathered.

A batch that located its rows before the prefix shrank still reads released rows at their old address. So
their slots stay pinned until every batch in progress at that time has ended. A slot keeps its row until the
cache evicts it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.gathers import Gathers
from polyrec.models.tiers.layout import HOST, RowLocations
from polyrec.models.tiers.prefix.balance import Balance
from polyrec.models.tiers.tier_set import TierSet

AT_ONCE = 1 << 14
"""Rows released by one batch: few milliseconds."""


class PrefixReleaser:
    """Counts the lookups of one stack and releases its prefix when `Balance` says so. Thread-safe.

    moving: lock held while rows are written into the tiers, and while they are released.
    file_soon: writes rows to the file in the background.
    """

    def __init__(
        self,
        tiers: TierSet,
        gathers: Gathers,
        moving: threading.Lock,
        file_soon: Callable[[I64], None],
    ) -> None:
        if tiers.disk is None or tiers.prefix is None:
            raise ValueError("these tiers have no prefix that can be released")
        self._prefix, self._disk, self._layout = tiers.prefix, tiers.disk, tiers.layout
        self._gathers = gathers
        self._moving = moving
        self._file_soon = file_soon
        self._split = Balance()
        self._lock = threading.Lock()
        self._due = self._returned = 0
        self._pinned: tuple[int, I64] | None = None

    def count_batch(self, where: RowLocations) -> None:
        """Counts a batch by its locations, see `count`."""
        self.count(
            where.local.size,
            lambda: (int((where.tier == HOST).sum()), self._prefix.hits(where.rows, where.segment)),
        )

    def count(self, lookups: int, hits: Callable[[], tuple[int, int]], release: bool = True) -> None:
        """Counts a batch's lookups, and releases rows if due.

        hits: returns how many are in host memory by the layout, and `Prefix.hits`; called if needed.
        release: False leaves what is due to the next batch, as releasing many rows takes milliseconds.
        """
        if not self._lock.acquire(blocking=False):
            return  # another thread is counting or releasing
        try:
            if release and self._pinned is not None and self._gathers.ended(self._pinned[0]):
                self._disk.unpin(self._pinned[1])
                self._pinned = None
            prefix, cache = self._prefix, self._disk.row_cache
            if not prefix.releasable:
                return
            returned = cache.returned
            self._split.count_batch(lookups, *hits(), returned - self._returned)
            self._returned = returned
            self._due = self._due or self._split.due(prefix.releasable, cache.remembered)
            if self._due and release:
                self.release(min(self._due, AT_ONCE))
        finally:
            self._lock.release()

    def release(self, count: int) -> None:
        """Releases rows now, unless rows are being written or slots are still pinned.

        Rows whose latest values are missing from the file are written first; a later call releases them.
        """
        if self._pinned is not None or not self._moving.acquire(blocking=False):
            return
        try:
            rows = self._prefix.coldest(count)
            segment = self._layout.segments(rows)
            slots = self._layout.local(rows, segment)
            outdated = self._prefix.outdated.take(slots)
            if outdated.any():
                self._file_soon(rows[outdated])
                return
            # batches that see the shorter prefix find the rows in the cache
            self._disk.join(self._layout.filed_address(rows, segment), slots)
            self._prefix.release(count)
            self._pinned = self._gathers.begun, slots
            self._due = max(self._due - count, 0)
        finally:
            self._moving.release()
