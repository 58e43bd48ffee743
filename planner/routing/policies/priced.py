"""Policy `priced`: maximizes information minus the price of device time; ties go to the best path
that leaves the rest of the queue feasible."""

from __future__ import annotations

from polyrec.planner.routing import batching
from polyrec.planner.routing.admission import admission
from polyrec.planner.routing.query import Query
from polyrec.planner.routing.router_state import RouterState


class Priced:
    """The default policy.

    Prices order the paths of each lane (router_state.py); batching picks among them.
    """

    name = "priced"
    fifo = False
    learns = False
    binds_at_arrival = False
    partitions_work = False
    admit = staticmethod(admission.admit)
    choose = staticmethod(batching.choose)

    def prepare(self, state: RouterState) -> None:
        state.allowed_paths = frozenset(range(len(state.paths)))
        state.refresh()

    def bind(self, state: RouterState, query: Query, now_s: float) -> int:
        return -1

    def accepted(self, state: RouterState, query: Query, now_s: float) -> None:
        """Not called: the policy does not bind at arrival."""

    def dispatched(self, state: RouterState, path: int, rows: int) -> None:
        """Not called: the policy does not bind at arrival."""

    def prices(self, state: RouterState) -> dict[str, float]:
        assert state.prices is not None
        return dict(zip(state.devices, state.prices.device, strict=True))

    def finished(self, query: Query, now_s: float) -> None:
        """Not called: the policy does not learn."""
