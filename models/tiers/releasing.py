"""Releases the static prefix to the cache, slot by slot, while batches are gathered.

A batch that located its rows before the prefix shrank still reads released rows at their old address. So
their slots stay pinned until every batch in progress at that time has ended. A slot keeps its row until the
cache evicts it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from polyrec.models.schema.batch import I64
from polyrec.models.tiers.disk.balance import Balance
from polyrec.models.tiers.layout import HOST, RowLocations
from polyrec.models.tiers.tier_set import TierSet

AT_ONCE = 1 << 14
"""Rows released by one batch: few milliseconds."""


class Gathers:
    """Numbers the batches that are being gathered. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rest = threading.Condition(self._lock)
        self._begun = 0
        self._active: set[int] = set()
        self._closed = False

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Marks the gathering of a batch as a context manager. Raises OSError if closed."""
        number = self.begin()
        try:
            yield
        finally:
            self.end(number)

    def begin(self) -> int:
        """Begins the gathering of a batch; returns its number for `end`. Raises OSError if closed."""
        with self._lock:
            if self._closed:
                raise OSError("these tiers are closed")
            self._begun += 1
            self._active.add(self._begun)
            return self._begun

    def end(self, number: int) -> None:
        """Ends the gathering of a batch; a second call does nothing."""
        with self._lock:
            self._active.discard(number)
            if not self._active:
                self._rest.notify_all()

    @property
    def begun(self) -> int:
        """Number of the latest batch begun."""
        return self._begun

    def ended(self, number: int) -> bool:
        """Returns whether all batches up to this number have ended."""
        with self._lock:
            return min(self._active, default=number + 1) > number

    def close(self, timeout_s: float) -> bool:
        """Refuses new batches; returns whether all others ended before the timeout."""
        with self._lock:
            self._closed = True
            return self._rest.wait_for(lambda: not self._active, timeout_s)


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
