"""Decides, from observed hits, how memory is split between the static prefix and the cache.

The prefix holds the rows that calibration found hottest. It needs no index and cannot be displaced, so it is
the best use of memory while the calibration is right. If the calibration is stale or has never seen many of
the rows, the prefix's slots are worth more in the cache and are released to it, coldest first. Two signals
trigger this:

- Hits per slot in the colder half of the prefix, compared with the hits that one more cache slot would have
  had (rows that return soon after their eviction). Once per window, the colder half is released if it has
  fewer.
- The share of lookups that the prefix answers. If it drops suddenly, the whole prefix is released.
"""

from __future__ import annotations

import math

WINDOW = 8192
"""Lookups between two comparisons of the colder half with the cache."""
BLOCK = 1024
"""Lookups between two checks for a sudden fall."""
FALL = 0.8
"""The prefix is released if its share of the lookups falls below this share of its average."""
SIGMAS = 4.0
"""And if chance does so less often than at this many standard deviations."""
FAST, SLOW = 0.5, 0.02
"""Weights of the newest block in the present and in the average share of the prefix."""
MIN_RETURNS = 16


class Balance:
    """Counts lookups and decides how many rows of the prefix to release. Not thread-safe."""

    def __init__(self) -> None:
        self._restart()
        self._lookups = self._hits = 0
        self._present = self._average = math.nan

    def _restart(self) -> None:
        self._seen = self._colder_hits = self._returned = 0

    def count_batch(self, lookups: int, hits: int, colder_hits: int, returned: int) -> None:
        """Counts a batch.

        hits: lookups that the prefix answered. colder_hits: those answered by its colder half.
        returned: missing rows that were evicted recently.
        """
        self._lookups += lookups
        self._hits += hits
        self._seen += lookups
        self._colder_hits += colder_hits
        self._returned += returned

    def due(self, prefix: int, remembered: int) -> int:
        """Returns the number of rows to release now, coldest first.

        prefix: rows of the prefix that can be released. remembered: evicted rows that the cache remembers.
        """
        if not prefix:
            return 0
        release = prefix if self._lookups >= BLOCK and self._hit_rate_fell() else 0
        if self._seen >= WINDOW:
            per_slot = self._colder_hits / max(prefix // 2, 1)
            if self._returned >= MIN_RETURNS and self._returned / max(remembered, 1) > per_slot:
                release = max(release, prefix - prefix // 2)
            self._restart()
        if release:
            self._present = self._average = math.nan
        return release

    def _hit_rate_fell(self) -> bool:
        share, lookups = self._hits / self._lookups, self._lookups
        self._lookups = self._hits = 0
        if math.isnan(self._average):
            self._present = self._average = share
            return False
        self._present += FAST * (share - self._present)
        # variance of an exponential moving average of shares
        noise = math.sqrt(self._average / lookups * FAST / (2 - FAST))
        if self._present < min(FALL * self._average, self._average - SIGMAS * noise):
            return True
        self._average += SLOW * (share - self._average)
        return False
