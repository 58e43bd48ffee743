"""Creates a policy from its name in a plan."""

from __future__ import annotations

from polyrec.planner.plan import PlanError, Routing
from polyrec.planner.routing.policies.deeprecsys import DeepRecSys
from polyrec.planner.routing.policies.mprec import MPRec
from polyrec.planner.routing.policies.policy import Policy
from polyrec.planner.routing.policies.priced import Priced
from polyrec.planner.routing.policies.static import Static
from polyrec.planner.routing.router_state import RouterState


def make_policy(routing: Routing, state: RouterState) -> Policy:
    """Creates the policy that `routing` names. Raises PlanError if the name contains an unknown path."""
    kind, _, path = routing.policy.partition(":")
    if kind == "static":
        index = {p.name: p.index for p in state.paths}
        if path not in index:
            raise PlanError(f"policy 'static:{path}': there is no such path; paths: {', '.join(index)}")
        return Static(index[path], path)
    if kind == "mprec":
        return MPRec()
    if kind == "deeprecsys":
        return DeepRecSys()
    return Priced()
