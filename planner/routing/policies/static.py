"""Policy `static:PATH`: one path for everything, with the same queue, batching and admission as `priced`."""

from __future__ import annotations

from polyrec.planner.routing import batching
from polyrec.planner.routing.admission import admission
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.policies.policy import BatchChoice
from polyrec.planner.routing.query import Query, Reason
from polyrec.planner.routing.router_state import RouterState

BEST, POLICY = Reason.BEST, Reason.POLICY


class Static:
    """path: index of the only path used."""

    fifo = False
    learns = False
    binds_at_arrival = False
    partitions_work = False

    def __init__(self, path: int, name: str) -> None:
        self.name = f"static:{name}"
        self._path = path

    def prepare(self, state: RouterState) -> None:
        state.allowed_paths = frozenset((self._path,))
        state.refresh()

    def admit(self, state: RouterState, query: Query, now_s: float) -> float:
        return admission.admit(state, query, now_s)

    def choose(self, state: RouterState, lane: LaneState, now_s: float) -> BatchChoice | None:
        choice = batching.choose(state, lane, now_s)
        if choice is None or choice.reason is BEST:
            return choice
        return choice._replace(reason=POLICY)

    def bind(self, state: RouterState, query: Query, now_s: float) -> int:
        return -1

    def accepted(self, state: RouterState, query: Query, now_s: float) -> None:
        """Not called: the policy does not bind at arrival."""

    def dispatched(self, state: RouterState, path: int, rows: int) -> None:
        """Not called: the policy does not bind at arrival."""

    def prices(self, state: RouterState) -> dict[str, float]:
        return {}

    def finished(self, query: Query, now_s: float) -> None:
        """Not called: the policy does not learn."""
