"""Lanes' time shared by the dispatchers of several models on one event loop.

A dispatcher asks before each batch whether it is its model's turn, and hears when another's batch has ended.
The decisions are pure (polyrec.planner.routing.sharing); here are the dispatchers to wake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyrec.planner.routing.query import Dispatch
from polyrec.planner.routing.router import Router
from polyrec.planner.routing.sharing.machine_time import MachineTime, ModelShare, SharingModel
from polyrec.planner.routing.sharing.pools import LanePlace
from polyrec.server.dispatch.control_loop import TICK_S


class LaneTurns:
    """One dispatcher's turns. wake: schedules its next pass over the free lanes."""

    def __init__(self, shared: SharedTime, model: SharingModel, wake: Callable[[], None]) -> None:
        self.model = model
        self.wake = wake
        self._shared = shared

    def may_start(self, lane: int, now_s: float) -> bool:
        """Whether a free lane may begin a batch now."""
        return self._shared.machine.may_start(self.model, lane, now_s)

    def started(self, dispatch: Dispatch) -> None:
        """Records a batch that begins."""
        self._shared.machine.started(self.model, dispatch)

    def ended(self, dispatch: Dispatch, took_s: float) -> None:
        """Records its end, and wakes those that wait for the lane."""
        self._shared.ended(self.model, dispatch, took_s)

    @property
    def yielded(self) -> bool:
        """Whether the last pass left a turn to another model, so that it should be followed by the next."""
        return bool(self.model.yielded)

    def passed(self, scheduled: bool) -> None:
        """Ends a pass. scheduled: whether another one will follow."""
        self.model.passes += 1
        self.model.scheduled = scheduled

    def tick(self, now_s: float) -> None:
        """Allots the models' time anew if that is due."""
        self._shared.tick(now_s)

    def leave(self) -> None:
        """Ends the sharing; the dispatcher may still execute what waits."""
        self._shared.leave(self)


class SharedTime:
    """The dispatchers that share a machine. cores: that their lanes may use."""

    def __init__(self, cores: frozenset[int]) -> None:
        self.machine = MachineTime(cores)
        self._turns: dict[SharingModel, LaneTurns] = {}
        self._ticked_s = 0.0

    def join(
        self, router: Router, places: Sequence[LanePlace], asked: ModelShare, wake: Callable[[], None]
    ) -> LaneTurns:
        """Adds a dispatcher. places: of its lanes. wake: as of LaneTurns."""
        turns = LaneTurns(self, self.machine.join(router, places, asked), wake)
        self._turns[turns.model] = turns
        return turns

    def leave(self, turns: LaneTurns) -> None:
        """Removes a dispatcher, and wakes those that may have waited for it."""
        if self._turns.pop(turns.model, None) is None:
            return
        self.machine.leave(turns.model)
        for other in self._turns.values():
            if other.model.router.state.queue.pieces:
                other.wake()

    def ended(self, model: SharingModel, dispatch: Dispatch, took_s: float) -> None:
        """Records the end of a batch, and wakes the dispatchers that may begin one."""
        for other in self.machine.ended(model, dispatch, took_s):
            self._turns[other].wake()

    def tick(self, now_s: float) -> None:
        """Allots anew, once for all dispatchers' ticks of TICK_S."""
        if now_s - self._ticked_s >= TICK_S / 2:
            self._ticked_s = now_s
            self.machine.tick(now_s)
