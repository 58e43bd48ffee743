"""Backs off from quality after losses: limits how far the backlog may fill the time left.

Latency models and rates know nothing of processor time lost to other processes or of the next burst; losses
reveal both. A query rejected, expired or late costs as much as thousands of better answers gain, so the first
loss of a tick lowers the limit at once, and ticks without one raise it slowly.
"""

from __future__ import annotations

MAX_FILL_SHARE = 0.6
"""Maximum share of the time left that the backlog may fill after a path other than the fastest was chosen."""
STEP = 0.25
KEPT_PER_TICK = 0.95


class LossBackoff:
    """level: 0, no recent losses, to 1.

    fill_share: limit at that level; at 0 only the fastest path is used.
    """

    __slots__ = ("_has_loss", "fill_share", "level")

    def __init__(self) -> None:
        self.level = 0.0
        self.fill_share = MAX_FILL_SHARE
        self._has_loss = False

    def record_loss(self) -> None:
        """Records a query that was rejected for lack of time, expired or was answered late."""
        if not self._has_loss:
            self._has_loss = True
            self._set(min(1.0, self.level + STEP))

    def tick(self) -> None:
        """Recovers if there was no loss since the last tick. Called about ten times a second."""
        if not self._has_loss:
            self._set(self.level * KEPT_PER_TICK)
        self._has_loss = False

    def reset(self) -> None:
        """Forgets all losses: those of one policy say nothing about the next."""
        self._has_loss = False
        self._set(0.0)

    def _set(self, level: float) -> None:
        self.level = level
        self.fill_share = MAX_FILL_SHARE * (1 - level)
