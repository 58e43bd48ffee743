"""Probes: which query a lane that is not trusted is tried on, and on which path.

A lane and the queue come in, a piece and a path go out. Where other lanes are there the query stays in the
queue for them, so that trying costs nobody anything.
"""

from __future__ import annotations

from planner.routing.board import Board
from planner.routing.lane import LaneState
from planner.routing.queue import Piece


def piece_for(board: Board, lane: LaneState) -> Piece | None:
    """The piece with most time left that this lane could answer whole."""
    for piece in reversed(board.queue.pieces):
        if not piece[3].settled and path_for(board, lane, piece) >= 0:
            return piece
    return None


def path_for(board: Board, lane: LaneState, piece: Piece) -> int:
    """The lane's fastest path, or that of the parts that are already on their way; -1: it has none."""
    query = piece[3]
    paths = board.paths
    if query.path >= 0 and piece[5] < query.rows:
        kind = paths[query.path].representation
        return next((p for p in lane.paths if paths[p].representation == kind), -1)
    if query.required and (not lane.order or paths[lane.order[0]].value < board.best):
        return -1
    return lane.order[0] if query.required else lane.fastest


def others(board: Board, lane: LaneState) -> list[LaneState]:
    """Other lanes that are trusted with work."""
    return [other for other in board.lanes if other is not lane and other.usable]
