"""DeepRecSys's scheduler: two sizes, tuned by climbing, divide queries between accelerator and CPU."""

import numpy as np

from polyrec.planner.routing.policies.deeprecsys import DeepRecSys
from polyrec.planner.routing.query import Query
from tests.planner.routing.servers import BOTH, GPU_LANE, RouterDriver, cpu_lanes, router


def climb(policy: DeepRecSys, queries: int, best: int) -> list[int]:
    """Latencies as if sub-batches of 2 ** best rows were best; returns the sizes on the way."""
    seen = []
    for now_s in range(1, queries + 1):
        latency_s = 1e-3 * (1 + abs(np.log2(policy.batch) - best))
        policy.finished(Query(10, now_s - latency_s, now_s), now_s)
        seen.append(policy.batch)
    return seen


def test_the_accelerator_gets_large_queries_whole_and_the_cpu_small_ones_even_if_the_other_is_idle():
    driver = RouterDriver(router(BOTH, (GPU_LANE, *cpu_lanes(2)), policy="deeprecsys"))
    policy = driver.router.policy
    assert isinstance(policy, DeepRecSys)
    small = [driver.submit(policy.threshold - 1, 0.05) for _ in range(4)]
    driver.turn()
    assert sorted(driver.running) == [1, 2]
    driver.run(0.02)
    large = [driver.submit(policy.threshold, 0.05)]
    driver.turn()
    large += [driver.submit(policy.threshold, 0.05) for _ in range(2)]
    driver.turn()
    assert list(driver.running) == [0]
    driver.run(0.04)
    # those that wait for the accelerator are merged
    assert [len(d.parts) for d in driver.dispatches if d.lane == 0] == [1, 2]
    for queries, device in ((small, "cpu"), (large, "cuda:0")):
        assert {driver.router.state.path_specs[query.path].device for query in queries} == {device}
        assert all(driver.ends[query] == ["answered"] for query in queries)


def test_it_climbs_to_the_best_batch_size():
    assert np.median(climb(DeepRecSys(), 12_000, 6)[6000:]) in (32, 64, 128)


def test_a_query_is_split_into_sub_batches_of_the_tuned_size_over_all_lanes_of_the_cpu():
    driver = RouterDriver(router(lanes=cpu_lanes(3), policy="deeprecsys"))
    policy = driver.router.policy
    assert isinstance(policy, DeepRecSys)
    climb(policy, 12_000, 4)
    assert policy.batch < 100
    query = driver.submit(2 * policy.batch + 7, 0.05)
    driver.turn()
    assert [d.rows for d in driver.dispatches] == [policy.batch, policy.batch, 7]
    driver.run(0.02)
    assert driver.ends[query] == ["answered"]


def test_queries_are_executed_in_the_order_in_which_they_came_not_of_their_deadlines():
    driver = RouterDriver(router(lanes=cpu_lanes(1), policy="deeprecsys"))
    patient, hurried = driver.submit(23, 0.1), driver.submit(23, 0.05)
    driver.run(0.02)
    assert [d.parts[0].query for d in driver.dispatches] == [patient, hurried]
