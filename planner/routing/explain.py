"""Read-only views of a router: a snapshot of its state, and the explanation of a decision.

Field names are keys of public JSON (`/v1/paths`, `/v1/route`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from polyrec.planner.routing.admission.rejection import excess_rows_of, rejection
from polyrec.planner.routing.decision import decide
from polyrec.planner.routing.lanes.lane import LaneState
from polyrec.planner.routing.latency.latency_table import in_batches
from polyrec.planner.routing.policies.policy import Policy
from polyrec.planner.routing.query import Query, RejectReason
from polyrec.planner.routing.queue import Queue
from polyrec.planner.routing.router_state import RouterState

ROWS_SHOWN = (1, 16, 64, 256, 1024)
QUANTILES = (0.1, 0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class LaneView:
    """A lane.

    factor: current slowdown relative to the profile. used: busy share of the last two seconds. waiting: share
        of that time in which it waited for a CPU that other programs used; measured for inline lanes.
    """

    name: str
    device: str
    alive: bool
    busy: bool
    breaker: str
    factor: float
    used: float
    waiting: float


@dataclass(frozen=True, slots=True)
class PathView:
    """A path.

    value: worth of an answered row times the operator's weight.
    share: share of recently dispatched rows.
    latency_s: corrected median in seconds by rows, on the fastest usable lane of its device; empty without
        one.
    """

    name: str
    value: float
    latency_s: dict[str, float]
    share: float


@dataclass(frozen=True, slots=True)
class RouterSnapshot:
    """The state of a router.

    demand_rows_s: see ObservedTraffic.
    size_rows: quantiles of recent query sizes.
    total_rate: capacity of all usable lanes in rows/s.
    prices: by device, the value that one more second of lane time would add.
    """

    policy: str
    queries_s: float
    demand_rows_s: float
    size_rows: dict[str, float]
    budget_s: float
    queued_queries: int
    queued_rows: int
    total_rate: float
    lanes: tuple[LaneView, ...]
    paths: tuple[PathView, ...]
    prices: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A path considered for a hypothetical query.

    queue_s: predicted queue delay.
    execute_s: tail service time.
    price: value that its device time would add elsewhere.
    why: explanation in words.
    """

    path: str
    value: float
    queue_s: float
    execute_s: float
    feasible: bool
    price: float
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The decision for a hypothetical query.

    path: None if the query would be rejected or no path meets the budget.
    """

    rows: int
    budget_s: float
    required: bool
    policy: str
    path: str | None
    reason: str
    why: str
    retry_after_s: float | None
    candidates: tuple[Candidate, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def snapshot(state: RouterState, policy: Policy) -> RouterSnapshot:
    """Returns the router's state as plain numbers."""
    observed = state.observed
    rows = sum(p.rows for p in state.paths) or 1.0
    return RouterSnapshot(
        policy=policy.name,
        queries_s=observed.queries_s,
        demand_rows_s=observed.demand_rows_s,
        size_rows={
            f"p{round(100 * q)}": v
            for q, v in zip(QUANTILES, observed.size_quantiles(QUANTILES), strict=False)
        },
        budget_s=observed.budget_s,
        queued_queries=len({id(piece.query) for piece in state.queue.unsettled()}) + len(state.queue.held),
        queued_rows=state.queue.rows,
        total_rate=state.total_rate,
        lanes=tuple(
            LaneView(
                lane.name,
                state.devices[lane.device],
                lane.alive,
                lane.in_flight is not None,
                lane.breaker.state.value,
                lane.correction.factor,
                lane.utilization,
                lane.correction.waiting,
            )
            for lane in state.lanes
        ),
        paths=tuple(
            PathView(p.name, p.value, _latencies(state, p.index), p.rows / rows) for p in state.paths
        ),
        prices=policy.prices(state),
    )


def explain(
    state: RouterState, policy: Policy, rows: int, budget_s: float, now_s: float, best_only: bool
) -> Explanation:
    """Explains the decision for a hypothetical query. Changes nothing, not even memoized service times."""
    service_times, state.service_times = state.service_times, state.service_times.copy()
    try:
        return _explain(state, policy, rows, budget_s, now_s, best_only)
    finally:
        state.service_times = service_times


def _explain(
    state: RouterState, policy: Policy, rows: int, budget_s: float, now_s: float, best_only: bool
) -> Explanation:
    query = Query(rows, now_s, now_s + budget_s, best_only=best_only)
    ahead = (state.queue.rows + state.executing_rows(now_s)) / state.total_rate if state.usable else 0.0
    candidates = tuple(_candidate(state, policy, p, query, ahead) for p in range(len(state.paths)))
    path, reason, why, retry = None, "deadline", "no lane can answer within the budget", None
    rejected = rejection(state, policy, query, now_s, now_s)
    if rejected is None:
        query.path = policy.bind(state, query, now_s)
        chosen = _chosen(state, policy, query, now_s)
        if chosen is not None:
            index, reason = chosen
            path = state.paths[index].name
            why = _WHY[reason] if any(c.feasible for c in candidates) else _WHY_ATTEMPTED
    elif rejected.reason is RejectReason.UNAVAILABLE:
        reason, why = "unavailable", "no lane is alive"
    elif rejected.reason is RejectReason.OVERLOAD:
        reason, retry = "overload", rejected.retry_after_s
        why = f"answering takes {1e3 * retry:.2f} ms more than the budget of {1e3 * budget_s:g} ms"
        if excess_rows_of(state, query) > 0:
            max_rows = state.limits.max_queued_rows
            why = f"{rows} rows do not fit into the queue: {state.queue.rows} of {max_rows} rows wait"
    return Explanation(rows, budget_s, best_only, policy.name, path, reason, why, retry, candidates)


_WHY_ATTEMPTED = "no path is predicted to answer within the budget; one is tried anyway"
_WHY = {
    "best": "the path of best quality meets the budget and leaves capacity for other requests",
    "load": "a path of better quality would make others miss their deadline",
    "deadline": "a path of better quality takes too much of the budget, even on an idle server",
    "failure": "the lanes of paths of better quality died or lost work",
    "probe": "a lane that was slow or had failed is probed",
    "policy": "the policy is set to this path",
}


def _chosen(state: RouterState, policy: Policy, query: Query, now_s: float) -> tuple[int, str] | None:
    """Decides for the lane that is free first, with only this query in the queue; returns (path, reason)."""
    queue = state.queue
    trial = Queue()
    trial.push(query, 0, query.rows)
    trial.rows += queue.rows
    state.queue = trial
    recheck_times = [lane.recheck_s for lane in state.lanes]
    try:
        for lane in sorted(state.usable, key=lambda lane: lane.free_s if lane.in_flight else 0.0):
            choice, _ = decide(state, policy, lane, now_s)
            if choice is not None:
                path, reason = choice.path, choice.reason
                return path, reason.value
    finally:
        state.queue = queue
        for lane, recheck_s in zip(state.lanes, recheck_times, strict=True):
            lane.recheck_s = recheck_s
    return None


def _candidate(state: RouterState, policy: Policy, path: int, query: Query, ahead_s: float) -> Candidate:
    path_state = state.paths[path]
    lanes = [lane for lane in state.usable if path in lane.paths]
    if not lanes:
        return Candidate(
            path_state.name, path_state.value, ahead_s, 0.0, False, 0.0, "no lane of its device is in service"
        )
    lane = min(lanes, key=lambda lane: lane.correction.tail[path])
    seconds = _seconds(state, lane, path, query.rows)
    budget_s = query.deadline_s - query.arrival_s
    total = ahead_s + seconds + state.front.answering_s(query.rows)
    feasible = total <= budget_s
    price = policy.prices(state).get(state.devices[path_state.device], 0.0) * seconds
    if path_state.value <= 0:
        why = "taken out: its weight is 0"
    elif path not in state.allowed_paths:
        why = "the policy does not use it"
    elif query.best_only and path_state.value < state.best_value:
        why = "the request requires the path of best quality"
    elif not feasible:
        why = f"takes {1e3 * total:.2f} ms with the queue, more than the budget"
    else:
        why = "makes it"
    return Candidate(path_state.name, path_state.value, ahead_s, seconds, feasible, price, why)


def _seconds(state: RouterState, lane: LaneState, path: int, rows: int) -> float:
    """Returns tail seconds on one lane, in batches of maximum size."""
    return in_batches(state.paths[path].latency.tail, rows, lane.max_rows[path]) * lane.correction.tail[path]


def _latencies(state: RouterState, path: int) -> dict[str, float]:
    lanes = [lane for lane in state.usable if path in lane.paths]
    if not lanes:
        return {}
    factor = min(lane.correction.median[path] for lane in lanes)
    median = state.paths[path].latency.median
    return {str(rows): median[rows] * factor for rows in ROWS_SHOWN if rows < len(median)}
