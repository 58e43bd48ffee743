"""The kept share: no backlog of privileged queries keeps ordinary ones out, of a lane or of the queue."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from polyrec.planner.plan import Limits
from polyrec.planner.routing.fair_share import SAVED_S, SHARE
from polyrec.planner.routing.query import Query
from tests.planner.routing.worlds import BOTH, CPU, GPU_LANE, POLICIES, Owner, cpu_lanes, router

HOUR_S = 3600.0
SERVERS = {
    "inline": (CPU, cpu_lanes(1, "inline")),
    "processes": (CPU, cpu_lanes(2)),
    "gpu": (BOTH, (GPU_LANE, *cpu_lanes(2))),
}


@dataclass
class Crowd:
    """Greedy privileged clients in a closed loop, among ordinary requests."""

    owner: Owner
    clients: int = 6
    rows: int = 512
    required: bool = True
    privileged: list[Query] = field(default_factory=list)
    ordinary: list[Query] = field(default_factory=list)

    def run(
        self, arrivals_s: np.ndarray, rows: int, budget_s: float, until_s: float, priority: int = 0
    ) -> None:
        """priority: of every second one of the others."""
        owner = self.owner
        greedy: list[Query | None] = [None] * self.clients
        waiting = list(arrivals_s[::-1])
        tick_s = 0.1
        while owner.now_s < until_s:
            for i, query in enumerate(greedy):
                if query is None or owner.ends[query]:
                    greedy[i] = owner.offer(self.rows, HOUR_S, 1, self.required)
                    self.privileged.append(greedy[i])
            while waiting and waiting[-1] <= owner.now_s:
                waiting.pop()
                own = priority if len(self.ordinary) % 2 else 0
                self.ordinary.append(owner.offer(rows, budget_s, own))
            if owner.now_s >= tick_s:
                owner.router.tick(owner.now_s)
                tick_s += 0.1
            owner.turn()
            ends = [d.started_s + d.median_s for d in owner.running.values()]
            wake_s = owner.router.wake_s()
            soonest = min([*ends, until_s, *waiting[-1:], *([wake_s] if wake_s is not None else [])])
            owner.now_s = max(owner.now_s + 1e-6, soonest)
            for lane, dispatch in list(owner.running.items()):
                if dispatch.started_s + dispatch.median_s <= owner.now_s + 1e-12:
                    owner.done(lane, dispatch.median_s)

    def answered(self, queries: list[Query]) -> int:
        return sum(self.owner.ends[query] == ["answered"] for query in queries)

    def lane_s(self, priority: int) -> float:
        """Time of lanes that queries of that priority took, those first in their batches."""
        return sum(d.median_s for d in self.owner.dispatches if d.parts[0].query.priority == priority)


def crowd(server: str, policy: str = "priced", **of: object) -> Crowd:
    paths, lanes = SERVERS[server]
    return Crowd(Owner(router(paths, lanes, policy=policy)), **of)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("budget_s", [0.02, 0.1])
def test_greedy_privileged_clients_leave_ordinary_requests_their_share(server: str, budget_s: float) -> None:
    """442 requests that need less than the share: before, none of them was answered."""
    rng = np.random.default_rng(0)
    busy = crowd(server)
    busy.run(np.sort(rng.uniform(0.0, 10.0, 442)), 23, budget_s, 10.5)
    assert busy.answered(busy.privileged) > 100
    assert busy.answered(busy.ordinary) >= 0.95 * 442


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("required", [True, False])
def test_where_both_want_more_than_there_is_each_class_gets_its_share(server: str, required: bool) -> None:
    busy = crowd(server, required=required)
    busy.run(np.arange(0.0, 3.0, 2e-4), 147, 0.05, 3.0)
    share = busy.lane_s(0) / (busy.lane_s(0) + busy.lane_s(1))
    assert 0.9 * SHARE < share < 0.25
    assert busy.answered(busy.ordinary) > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_the_share_is_kept_under_every_policy(policy: str) -> None:
    busy = crowd("processes", policy, required=False)
    busy.run(np.arange(0.0, 3.0, 0.02), 23, 0.1, 3.2)
    assert busy.answered(busy.ordinary) >= 0.9 * len(busy.ordinary)


def test_a_middle_priority_is_no_more_starved_than_the_lowest() -> None:
    busy = crowd("processes")
    busy.run(np.arange(0.0, 4.0, 0.02), 23, 0.1, 4.2, priority=2)
    assert busy.answered(busy.ordinary[::2]) >= 95
    assert busy.answered(busy.ordinary[1::2]) >= 95


def test_a_higher_priority_goes_first_as_long_as_it_leaves_the_share() -> None:
    """Ordinary queries of as much work as nine privileged ones wait for those."""
    owner = Owner(router(lanes=cpu_lanes(1), limits=Limits(max_batch_rows=150), policy="static:table@cpu"))
    for priority in (0, *[1] * 12):
        owner.offer(150, 0.1, priority)
    owner.run(0.05)
    order = [d.parts[0].query.priority for d in owner.dispatches]
    assert order == [*[1] * 9, 0, *[1] * 3]


def test_credit_from_times_when_nobody_else_waited_is_bounded() -> None:
    owner = Owner(router(lanes=cpu_lanes(1), limits=Limits(max_batch_rows=150), policy="static:table@cpu"))
    for _ in range(105):
        owner.offer(150, HOUR_S, 1)
    owner.run(0.05)
    assert owner.router.board.queue.credit_s == SAVED_S
    before = len(owner.dispatches)
    for _ in range(40):
        owner.offer(150, HOUR_S)
    owner.run(0.07)
    after = owner.dispatches[before:]
    at_once = [d.parts[0].query.priority for d in after].index(1)
    assert 0 < at_once * after[0].median_s <= SAVED_S


def test_a_settled_query_gets_no_turn() -> None:
    owner = Owner(router(lanes=cpu_lanes(1), limits=Limits(max_batch_rows=150), policy="static:table@cpu"))
    gone = [owner.offer(150, HOUR_S) for _ in range(20)]
    stays = owner.offer(150, HOUR_S)
    for _ in range(30):
        owner.offer(150, HOUR_S, 1)
    for query in gone:
        owner.cancel(query)
    owner.run(0.01)
    assert [d for d in owner.dispatches if d.parts[0].query in gone] == []
    assert owner.ends[stays] == ["answered"]


@pytest.mark.parametrize("privileged", [True, False])
def test_a_queue_full_of_one_class_has_room_for_the_other(privileged: bool) -> None:
    r = router(limits=Limits(max_queued_rows=4096))
    own, other = int(privileged), int(not privileged)
    assert r.offer(Query(4096, 0.0, HOUR_S, own), 0.0) is None
    assert r.offer(Query(1, 0.0, HOUR_S, own), 0.0) is not None
    assert r.offer(Query(400, 0.0, HOUR_S, other), 0.0) is None
    refused = r.offer(Query(10, 0.0, HOUR_S, other), 0.0)
    assert refused is not None
    assert refused.queued_rows == 4496


def test_nobody_is_turned_away_unread_because_one_with_a_priority_was_refused() -> None:
    r = router(lanes=cpu_lanes(1, "inline"), policy="static:table@cpu")
    assert r.offer(Query(2000, 0.0, HOUR_S, 1), 0.0) is None
    assert r.offer(Query(2000, 0.0, 0.001, 1), 0.0, 100) is not None
    assert r.reject_early(0.0, 0.001, 100, 0.0) is None
