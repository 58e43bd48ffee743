"""Policies by name, as a plan names them."""

from __future__ import annotations

from planner.plan import PlanError, Routing
from planner.routing.board import Board
from planner.routing.deeprecsys import DeepRecSys
from planner.routing.mprec import MPRec
from planner.routing.policy import Policy
from planner.routing.priced import Priced
from planner.routing.static import Static


def make_policy(routing: Routing, board: Board) -> Policy:
    """The policy that a plan's routing names. Raises PlanError if it names an unknown path."""
    kind, _, path = routing.policy.partition(":")
    if kind == "static":
        index = {p.name: p.index for p in board.paths}
        if path not in index:
            raise PlanError(f"policy 'static:{path}': there is no such path; paths: {', '.join(index)}")
        return Static(index[path], path)
    if kind == "mprec":
        return MPRec()
    if kind == "deeprecsys":
        return DeepRecSys()
    return Priced()
