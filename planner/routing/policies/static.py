"""Policy `static:PATH`: uses one path for all queries, with the queue, batching and admission of `priced`."""

from __future__ import annotations

from polyrec.planner.routing import batching
from polyrec.planner.routing.admission import admission
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.policies.policy import BatchChoice, Policy
from polyrec.planner.routing.query import Reason
from polyrec.planner.routing.router_state import RouterState

BEST, POLICY = Reason.BEST, Reason.POLICY


class Static(Policy):
    """A policy that uses one path only.

    path: index of the only path used.
    """

    excess_s = staticmethod(admission.excess_s)

    def __init__(self, path: int, name: str) -> None:
        self.name = f"static:{name}"
        self._path = path

    def prepare(self, state: RouterState) -> None:
        state.allowed_paths = frozenset((self._path,))
        state.refresh()

    def choose(self, state: RouterState, lane: LaneState, now_s: float) -> BatchChoice | None:
        choice = batching.choose(state, lane, now_s)
        if choice is None or choice.reason is BEST:
            return choice
        return choice._replace(reason=POLICY)
