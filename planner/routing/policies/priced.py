"""Policy `priced`, the default: maximizes information minus the price of device time.

Ties go to the best path that leaves the rest of the queue feasible."""

from __future__ import annotations

from polyrec.planner.routing import batching
from polyrec.planner.routing.admission import admission
from polyrec.planner.routing.policies.policy import Policy
from polyrec.planner.routing.router_state import RouterState


class Priced(Policy):
    """The default policy.

    Prices order the paths of each lane (router_state.py); batching.py picks among them.
    """

    name = "priced"
    excess_s = staticmethod(admission.excess_s)
    choose = staticmethod(batching.choose)

    def prices(self, state: RouterState) -> dict[str, float]:
        assert state.prices is not None
        return dict(zip(state.devices, state.prices.device, strict=True))
