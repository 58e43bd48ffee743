"""Backs off from quality under load and after losses, by limiting how far the backlog may fill the time left.

Latency models and rates do not know about CPU time lost to other processes or about the next burst; losses
reveal both. A query that is rejected, expired or late costs as much as thousands of better answers gain. So
the first loss in a tick lowers the limit at once, and ticks without losses raise it slowly.

A client that loses a row now and then, through budgets of its own choice, must not reduce the quality for
everyone else. So the limit is lowered no further than the lost share of the information at stake in the
choice of paths.
"""

from __future__ import annotations

from polyrec.planner.routing.policies.lost_times import LostTimes

MAX_FILL_SHARE = 0.6
"""Maximum share of the remaining time that the backlog may fill unless the fastest path is chosen."""
BUSY = 0.5
"""Utilization of the lanes on their fastest paths from which an expected backlog is limited as any is."""
TAIL = 0.01
"""Share of the batches that take longer than a predicted tail."""
STEP = 0.25
KEPT_PER_TICK = 0.95


class LossBackoff:
    """The backoff from quality after losses.

    level: from 0 (no recent losses) to 1.
    fill_share: the limit at that level; at 0 only the fastest path is used.
    rest_share: the limit for a backlog of which most is expected to arrive, on an idle server without losses.
        Such queries rarely arrive there, and if all the time is filled, one that does is late in TAIL of the
        cases. So it is the higher, the more the best paths gain over the fastest.
    expected_share: the same at the present utilization and level.
    usual_slack_s: time for which a query of usual size and budget can wait (admission/losses.py).
    """

    __slots__ = (
        "_at_stake", "_has_loss", "_level", "_lost_times", "_max_expected_share", "_offered",
        "expected_share", "fill_share", "rest_share", "usual_slack_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.usual_slack_s = 0.0
        self.fill_share = self.expected_share = self.rest_share = self._max_expected_share = MAX_FILL_SHARE
        self._has_loss = False
        self._level = self._at_stake = self._offered = 0.0
        self._lost_times = LostTimes()

    @property
    def level(self) -> float:
        lost = self._lost_times.total
        return lost / self._at_stake if lost < self._level * self._at_stake else self._level

    def avoidable_share(self, saved_share: float) -> float:
        """Returns the recent losses that saving a share of all time would have avoided, of what arrived."""
        return min(1.0, self._lost_times.avoided(saved_share) / self._offered) if self._offered else 0.0

    def set_load(self, utilization: float, gain: float) -> None:
        """Sets what `rest_share` and `expected_share` depend on.

        utilization: of the lanes, if everything is executed on the fastest paths.
        gain: share of the best paths' value that the fastest lack.
        """
        self.rest_share = MAX_FILL_SHARE + (1 - MAX_FILL_SHARE) * min(gain / TAIL, 1.0)
        busy = min(utilization / BUSY, 1.0)
        self._max_expected_share = self.rest_share - (self.rest_share - MAX_FILL_SHARE) * busy
        self._update()

    def record_loss(self, information: float, late_share: float = 0.0) -> None:
        """Records a query that was rejected for lack of time, expired or was answered late.

        late_share: share of its time that was too much.
        """
        self._lost_times.record(late_share, information)
        if not self._has_loss:
            self._has_loss = True
            self._level = min(1.0, self._level + STEP)
        self._update()

    def tick(self, at_stake: float, offered: float = 0.0) -> None:
        """Recovers if there was no loss since the last tick. Call it about ten times a second.

        at_stake: information that rows arriving since then gain on the best paths compared with the fastest.
        offered: information of all of them on the best paths.
        """
        if not self._has_loss:
            self._level *= KEPT_PER_TICK
        self._has_loss = False
        self._lost_times.decay(KEPT_PER_TICK)
        self._offered = KEPT_PER_TICK * self._offered + offered
        self._at_stake = KEPT_PER_TICK * self._at_stake + at_stake
        self._update()

    def reset(self) -> None:
        """Forgets all losses, since those of one policy do not apply to the next."""
        self._has_loss = False
        self._level = self._at_stake = self._offered = 0.0
        self._lost_times = LostTimes()
        self._update()

    def _update(self) -> None:
        kept = 1 - self.level
        self.fill_share = MAX_FILL_SHARE * kept
        self.expected_share = self._max_expected_share * kept
