"""Caution: how much of the time left may be filled for accuracy's sake, by what has been lost of late.

Latency models and rates know nothing of a core that others take, or of a burst that has not come yet. Losses
tell: a query refused, expired or late costs what thousands of better answers gain, so the first one of a tick
makes the router more careful at once, and ticks without any make it bolder again little by little.
"""

from __future__ import annotations

SPARE = 0.6
"""Share of the time left that the backlog may fill after a more accurate path was chosen, at most."""
STEP = 0.25
KEPT_A_TICK = 0.95


class Caution:
    """spare: SPARE as far as caution leaves it; 0: only the fastest path is taken. level: 0 to 1."""

    __slots__ = ("_lost", "level", "spare")

    def __init__(self) -> None:
        self.level = 0.0
        self.spare = SPARE
        self._lost = False

    def lost(self) -> None:
        """A query was refused for want of time, expired, or was answered late."""
        if not self._lost:
            self._lost = True
            self._set(min(1.0, self.level + STEP))

    def tick(self) -> None:
        """About ten times a second."""
        if not self._lost:
            self._set(self.level * KEPT_A_TICK)
        self._lost = False

    def _set(self, level: float) -> None:
        self.level = level
        self.spare = SPARE * (1 - level)
