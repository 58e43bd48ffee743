"""Shares lane time between the dispatchers of several models on one event loop.

A dispatcher asks before each batch whether it is its model's turn, and is woken when another model's batch
ends. Pure code in planner/routing/sharing/ decides; this module only wakes the dispatchers.
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

    def may_start(self, lane: int) -> bool:
        """Whether a free lane may start a batch now."""
        return self._shared.machine.may_start(self.model, lane)

    def started(self, dispatch: Dispatch) -> None:
        """Records the start of a batch."""
        self._shared.machine.started(self.model, dispatch)

    def ended(self, dispatch: Dispatch, took_s: float) -> None:
        """Records the end of a batch, and wakes the dispatchers that wait for the lane."""
        self._shared.ended(self.model, dispatch, took_s)

    @property
    def yielded(self) -> bool:
        """Whether this model yielded to another in the last pass, so that another pass must follow."""
        return self.model.yielded

    def passed(self, scheduled: bool) -> None:
        """Records the end of a pass over the free lanes. scheduled: whether another one will follow."""
        self.model.passed(scheduled)

    def tick(self, now_s: float) -> None:
        """Recomputes the models' allotments if that is due."""
        self._shared.tick(now_s)

    def leave(self) -> None:
        """Stops sharing; the dispatcher may still execute waiting queries."""
        self._shared.leave(self)


class SharedTime:
    """The dispatchers that share a machine. cores: the CPU cores that their lanes may use."""

    def __init__(self, cores: frozenset[int]) -> None:
        self.machine = MachineTime(cores)
        self._turns: dict[SharingModel, LaneTurns] = {}
        self._ticked_s = 0.0

    def join(
        self, router: Router, places: Sequence[LanePlace], asked: ModelShare, wake: Callable[[], None]
    ) -> LaneTurns:
        """Adds a dispatcher. places: where each of its lanes runs. wake: see LaneTurns."""
        turns = LaneTurns(self, self.machine.join(router, places, asked), wake)
        self._turns[turns.model] = turns
        return turns

    def leave(self, turns: LaneTurns) -> None:
        """Removes a dispatcher and wakes those that may have waited for it."""
        if self._turns.pop(turns.model, None) is None:
            return
        self.machine.leave(turns.model)
        for other in self._turns.values():
            if other.model.router.state.queue.pieces:
                other.wake()

    def ended(self, model: SharingModel, dispatch: Dispatch, took_s: float) -> None:
        """Records the end of a batch and wakes the dispatchers that may start one."""
        for other in self.machine.ended(model, dispatch, took_s):
            self._turns[other].wake()

    def tick(self, now_s: float) -> None:
        """Recomputes the allotments, at most once per TICK_S for all dispatchers."""
        if now_s - self._ticked_s >= TICK_S / 2:
            self._ticked_s = now_s
            self.machine.tick()
