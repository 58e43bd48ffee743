"""Fair share: no backlog of privileged queries keeps ordinary ones out of lanes or queue."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from polyrec.planner.plan import Limits
from polyrec.planner.routing.fair_share import RESERVED_SHARE, SAVED_S
from polyrec.planner.routing.query import Query
from tests.planner.routing.servers import BOTH, CPU, GPU_LANE, POLICIES, RouterDriver, cpu_lanes, router

HOUR_S = 3600.0
SERVERS = {
    "inline": (CPU, cpu_lanes(1, "inline")),
    "processes": (CPU, cpu_lanes(2)),
    "gpu": (BOTH, (GPU_LANE, *cpu_lanes(2))),
}


@dataclass
class Crowd:
    """Greedy privileged clients in a closed loop, among ordinary requests."""

    driver: RouterDriver
    clients: int = 6
    rows: int = 512
    best_only: bool = True
    privileged: list[Query] = field(default_factory=list)
    ordinary: list[Query] = field(default_factory=list)

    def run(
        self, arrivals_s: np.ndarray, rows: int, budget_s: float, until_s: float, priority: int = 0
    ) -> None:
        """priority: of every second one of the others."""
        driver = self.driver
        greedy: list[Query | None] = [None] * self.clients
        waiting = list(arrivals_s[::-1])
        tick_s = 0.1
        while driver.now_s < until_s:
            for i, query in enumerate(greedy):
                if query is None or driver.ends[query]:
                    greedy[i] = driver.submit(self.rows, HOUR_S, 1, self.best_only)
                    self.privileged.append(greedy[i])
            while waiting and waiting[-1] <= driver.now_s:
                waiting.pop()
                own = priority if len(self.ordinary) % 2 else 0
                self.ordinary.append(driver.submit(rows, budget_s, own))
            if driver.now_s >= tick_s:
                driver.router.tick(driver.now_s)
                tick_s += 0.1
            driver.turn()
            ends = [d.started_s + d.median_s for d in driver.running.values()]
            wake_s = driver.router.wake_s()
            soonest = min([*ends, until_s, *waiting[-1:], *([wake_s] if wake_s is not None else [])])
            driver.now_s = max(driver.now_s + 1e-6, soonest)
            for lane, dispatch in list(driver.running.items()):
                if dispatch.started_s + dispatch.median_s <= driver.now_s + 1e-12:
                    driver.done(lane, dispatch.median_s)

    def answered(self, queries: list[Query]) -> int:
        return sum(self.driver.ends[query] == ["answered"] for query in queries)

    def lane_s(self, priority: int) -> float:
        """Time of lanes that queries of that priority took, those first in their batches."""
        return sum(d.median_s for d in self.driver.dispatches if d.parts[0].query.priority == priority)


def crowd(server: str, policy: str = "priced", **of: object) -> Crowd:
    paths, lanes = SERVERS[server]
    return Crowd(RouterDriver(router(paths, lanes, policy=policy)), **of)


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
@pytest.mark.parametrize("best_only", [True, False])
def test_when_both_classes_exceed_capacity_each_gets_its_share(server: str, best_only: bool) -> None:
    busy = crowd(server, best_only=best_only)
    busy.run(np.arange(0.0, 3.0, 2e-4), 147, 0.05, 3.0)
    share = busy.lane_s(0) / (busy.lane_s(0) + busy.lane_s(1))
    assert 0.9 * RESERVED_SHARE < share < 0.25
    assert busy.answered(busy.ordinary) > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_the_share_is_kept_under_every_policy(policy: str) -> None:
    busy = crowd("processes", policy, best_only=False)
    busy.run(np.arange(0.0, 3.0, 0.02), 23, 0.1, 3.2)
    assert busy.answered(busy.ordinary) >= 0.9 * len(busy.ordinary)


def test_a_middle_priority_is_no_more_starved_than_the_lowest() -> None:
    busy = crowd("processes")
    busy.run(np.arange(0.0, 4.0, 0.02), 23, 0.1, 4.2, priority=2)
    assert busy.answered(busy.ordinary[::2]) >= 95
    assert busy.answered(busy.ordinary[1::2]) >= 95


def test_a_higher_priority_goes_first_as_long_as_it_leaves_the_share() -> None:
    """Ordinary queries of as much work as nine privileged ones wait for those."""
    driver = RouterDriver(
        router(lanes=cpu_lanes(1), limits=Limits(max_batch_rows=150), policy="static:table@cpu")
    )
    for priority in (0, *[1] * 12):
        driver.submit(150, 0.1, priority)
    driver.run(0.05)
    order = [d.parts[0].query.priority for d in driver.dispatches]
    assert order == [*[1] * 9, 0, *[1] * 3]


def test_credit_earned_without_waiting_lower_priorities_is_bounded() -> None:
    driver = RouterDriver(
        router(lanes=cpu_lanes(1), limits=Limits(max_batch_rows=150), policy="static:table@cpu")
    )
    for _ in range(105):
        driver.submit(150, HOUR_S, 1)
    driver.run(0.05)
    assert driver.router.state.queue.credit_s == SAVED_S
    before = len(driver.dispatches)
    for _ in range(40):
        driver.submit(150, HOUR_S)
    driver.run(0.07)
    after = driver.dispatches[before:]
    at_once = [d.parts[0].query.priority for d in after].index(1)
    assert 0 < at_once * after[0].median_s <= SAVED_S


def test_a_settled_query_gets_no_turn() -> None:
    driver = RouterDriver(
        router(lanes=cpu_lanes(1), limits=Limits(max_batch_rows=150), policy="static:table@cpu")
    )
    gone = [driver.submit(150, HOUR_S) for _ in range(20)]
    stays = driver.submit(150, HOUR_S)
    for _ in range(30):
        driver.submit(150, HOUR_S, 1)
    for query in gone:
        driver.cancel(query)
    driver.run(0.01)
    assert [d for d in driver.dispatches if d.parts[0].query in gone] == []
    assert driver.ends[stays] == ["answered"]


@pytest.mark.parametrize("privileged", [True, False])
def test_a_queue_full_of_one_class_has_room_for_the_other(privileged: bool) -> None:
    r = router(limits=Limits(max_queued_rows=4096))
    own, other = int(privileged), int(not privileged)
    assert r.submit(Query(4096, 0.0, HOUR_S, own), 0.0) is None
    assert r.submit(Query(1, 0.0, HOUR_S, own), 0.0) is not None
    assert r.submit(Query(400, 0.0, HOUR_S, other), 0.0) is None
    rejection = r.submit(Query(10, 0.0, HOUR_S, other), 0.0)
    assert rejection is not None
    assert rejection.queued_rows == 4496


def test_a_rejected_priority_query_causes_no_early_rejection() -> None:
    r = router(lanes=cpu_lanes(1, "inline"), policy="static:table@cpu")
    assert r.submit(Query(2000, 0.0, HOUR_S, 1), 0.0) is None
    assert r.submit(Query(2000, 0.0, 0.001, 1), 0.0) is not None
    assert not r.overloaded
