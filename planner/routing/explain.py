"""Why a query would go where, and the router's state as numbers. Read-only views of the board."""

from __future__ import annotations

from polyrec.planner.routing.admission.attempt import worth_accepting
from polyrec.planner.routing.decision import decide
from polyrec.planner.routing.explanation import Candidate, Explanation, LaneView, PathView, RouterState
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.latency.latency_table import in_batches
from polyrec.planner.routing.policies.policy import Policy
from polyrec.planner.routing.query import Query
from polyrec.planner.routing.queue import Queue
from polyrec.planner.routing.router_state import Board

ROWS_SHOWN = (1, 16, 64, 256, 1024)
QUANTILES = (0.1, 0.5, 0.9, 0.99)


def state(board: Board, policy: Policy, now_s: float) -> RouterState:
    """The board as plain numbers."""
    observed = board.observed
    rows = sum(p.rows for p in board.paths) or 1.0
    return RouterState(
        policy=policy.name,
        queries_s=observed.queries_s,
        rows_s=observed.rows_s,
        size_rows={
            f"p{round(100 * q)}": v
            for q, v in zip(QUANTILES, observed.size_quantiles(QUANTILES), strict=False)
        },
        budget_s=observed.budget_s,
        queued_queries=len({id(piece[3]) for piece in board.queue.unsettled()}),
        queued_rows=board.queue.rows,
        total_rate=board.total_rate,
        lanes=tuple(
            LaneView(
                lane.name,
                board.devices[lane.device],
                lane.alive,
                lane.flight is not None,
                lane.breaker.state.value,
                lane.correction.factor,
                lane.used,
            )
            for lane in board.lanes
        ),
        paths=tuple(
            PathView(p.name, p.value, _latencies(board, p.index), p.rows / rows) for p in board.paths
        ),
        prices=policy.prices(board),
    )


def explain(
    board: Board, policy: Policy, rows: int, budget_s: float, now_s: float, required: bool
) -> Explanation:
    """What would be done with such a query now. Changes nothing, nor what is kept for later decisions."""
    own, board.own = board.own, board.own.copy()
    try:
        return _explain(board, policy, rows, budget_s, now_s, required)
    finally:
        board.own = own


def _explain(
    board: Board, policy: Policy, rows: int, budget_s: float, now_s: float, required: bool
) -> Explanation:
    query = Query(rows, now_s, now_s + budget_s, required=required)
    ahead = (board.queue.rows + board.committed_rows(now_s)) / board.total_rate if board.usable else 0.0
    candidates = tuple(_candidate(board, policy, p, query, ahead, now_s) for p in range(len(board.paths)))
    path, reason, why, retry = None, "overload", "", None
    if not board.usable:
        reason, why = "unavailable", "no lane is alive"
    elif (over := board.queue.over(rows, False, board.limits.max_queued_rows)) > 0:
        retry = over / board.total_rate
        most = board.limits.max_queued_rows
        why = f"{rows} rows do not fit into the queue: {board.queue.rows} of {most} rows wait"
    elif (over_s := policy.admit(board, query, now_s)) > 0 and not worth_accepting(board, query, now_s):
        retry = over_s
        why = f"answering takes {1e3 * over_s:.2f} ms more than the budget of {1e3 * budget_s:g} ms"
    else:
        query.path = policy.bind(board, query, now_s)
        chosen = _chosen(board, policy, query, now_s)
        if chosen is None:
            reason, why = "deadline", "no lane can make it within the budget"
        else:
            index, reason = chosen
            path = board.paths[index].name
            why = _WORDS[reason] if any(c.feasible for c in candidates) else _TRIED
    return Explanation(rows, budget_s, required, policy.name, path, reason, why, retry, candidates)


_TRIED = "no path is predicted to answer within the budget; one is tried nevertheless"
_WORDS = {
    "best": "the most accurate path makes it, and leaves room for what waits and comes",
    "load": "a more accurate path would make others miss their deadline",
    "deadline": "a more accurate path takes longer than the budget",
    "failure": "the lanes of more accurate paths died or lost work",
    "probe": "a lane that was slow or out is tried again",
    "policy": "the policy is set to this path",
}


def _chosen(board: Board, policy: Policy, query: Query, now_s: float) -> tuple[int, str] | None:
    """The policy's own choice, by the lane that is free first, with the query at the head of what waits."""
    queue = board.queue
    trial = Queue()
    trial.push(query, 0, query.rows, query.deadline_s)
    trial.rows += queue.rows
    board.queue = trial
    agains = [lane.again_s for lane in board.lanes]
    try:
        for lane in sorted(board.usable, key=lambda lane: lane.free_s if lane.flight else 0.0):
            choice, _ = decide(board, policy, lane, now_s)
            if choice is not None:
                path, _, _, _, reason = choice
                return path, reason.value
    finally:
        board.queue = queue
        for lane, again_s in zip(board.lanes, agains, strict=True):
            lane.again_s = again_s
    return None


def _candidate(
    board: Board, policy: Policy, path: int, query: Query, ahead_s: float, now_s: float
) -> Candidate:
    spec = board.paths[path]
    lanes = [lane for lane in board.usable if path in lane.paths]
    if not lanes:
        return Candidate(
            spec.name, spec.value, ahead_s, 0.0, False, 0.0, "no lane of its device is in service"
        )
    lane = min(lanes, key=lambda lane: lane.correction.tail[path])
    seconds = _seconds(board, lane, path, query.rows)
    budget_s = query.deadline_s - query.arrival_s
    total = ahead_s + seconds + board.front_s(query)
    feasible = total <= budget_s
    price = policy.prices(board).get(board.devices[spec.device], 0.0) * seconds
    if spec.value <= 0:
        why = "taken out: its weight is 0"
    elif path not in board.allowed:
        why = "the policy does not use it"
    elif query.required and spec.value < board.best:
        why = "the request requires the most accurate path"
    elif not feasible:
        why = f"takes {1e3 * total:.2f} ms with the queue, more than the budget"
    else:
        why = "makes it"
    return Candidate(spec.name, spec.value, ahead_s, seconds, feasible, price, why)


def _seconds(board: Board, lane: LaneState, path: int, rows: int) -> float:
    """Seconds at the tail on one lane, in batches as large as it takes."""
    return in_batches(board.paths[path].curve.tail, rows, lane.most[path]) * lane.correction.tail[path]


def _latencies(board: Board, path: int) -> dict[str, float]:
    lanes = [lane for lane in board.usable if path in lane.paths]
    if not lanes:
        return {}
    factor = min(lane.correction.median[path] for lane in lanes)
    median = board.paths[path].curve.median
    return {str(rows): median[rows] * factor for rows in ROWS_SHOWN if rows < len(median)}
