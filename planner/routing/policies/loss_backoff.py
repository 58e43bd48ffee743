"""Backs off from quality after losses: limits how far the backlog may fill the time left.

Latency models and rates know nothing of processor time lost to other processes or of the next burst; losses
reveal both. A query rejected, expired or late costs as much as thousands of better answers gain, so the first
loss of a tick lowers the limit at once, and ticks without one raise it slowly. But a client that loses a row
now and then, by budgets of its own choice, must not cost all others their quality: the limit is lowered no
further than the share of the information at stake in the choice of paths that was lost.
"""

from __future__ import annotations

MAX_FILL_SHARE = 0.6
"""Maximum share of the time left that the backlog may fill after a path other than the fastest was chosen."""
STEP = 0.25
KEPT_PER_TICK = 0.95


class LossBackoff:
    """The backoff from quality after losses.

    level: 0, no recent losses, to 1.

    fill_share: limit at that level; at 0 only the fastest path is used. usual_slack_s: time to wait that a
    query of usual size and budget has (admission/losses.py).
    """

    __slots__ = ("_at_stake", "_has_loss", "_level", "_lost", "fill_share", "usual_slack_s")

    def __init__(self) -> None:
        self.usual_slack_s = 0.0
        self.fill_share = MAX_FILL_SHARE
        self._has_loss = False
        self._level = self._lost = self._at_stake = 0.0

    @property
    def level(self) -> float:
        if self._lost < self._level * self._at_stake:
            return self._lost / self._at_stake
        return self._level

    def record_loss(self, information: float) -> None:
        """Records a query that was rejected for lack of time, expired or was answered late."""
        self._lost += information
        if not self._has_loss:
            self._has_loss = True
            self._level = min(1.0, self._level + STEP)
        self._update()

    def tick(self, at_stake: float) -> None:
        """Recovers if there was no loss since the last tick. Called about ten times a second.

        at_stake: information of the rows that arrived since, on the best paths rather than the fastest.
        """
        if not self._has_loss:
            self._level *= KEPT_PER_TICK
        self._has_loss = False
        self._lost *= KEPT_PER_TICK
        self._at_stake = KEPT_PER_TICK * self._at_stake + at_stake
        self._update()

    def reset(self) -> None:
        """Forgets all losses: those of one policy say nothing about the next."""
        self._has_loss = False
        self._level = self._lost = self._at_stake = 0.0
        self._update()

    def _update(self) -> None:
        self.fill_share = MAX_FILL_SHARE * (1 - self.level)
