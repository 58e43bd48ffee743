"""Pools of lanes of several models."""

from polyrec.planner.routing.sharing.pools import LanePlace, Pool, pools_of

CORES = frozenset(range(4))
INLINE = LanePlace("cpu", "inline")


def pinned(*cores: int) -> LanePlace:
    return LanePlace("cpu", "process", frozenset(cores))


def test_inline_lanes_share_the_loop():
    assert pools_of([[INLINE], [INLINE], [pinned(1)]], CORES) == (Pool(1, ((0, 0), (1, 0))),)


def test_lanes_pinned_to_overlapping_cores_are_one_pool_of_all_of_them():
    found = pools_of([[pinned(0, 1), pinned(3)], [pinned(1), pinned(0), pinned(2)]], CORES)
    assert found == (Pool(2, ((0, 0), (1, 0), (1, 1))),)


def test_lanes_that_are_not_pinned_compete_only_if_they_exceed_the_cores():
    free = LanePlace("cpu", "thread")
    assert pools_of([[free] * 2, [free] * 2], CORES) == ()
    (pool,) = pools_of([[free] * 3, [free] * 2], CORES)
    assert (pool.capacity, len(pool.lanes)) == (4, 5)


def test_an_accelerator_executes_as_many_batches_as_one_plan_has_lanes():
    gpu = LanePlace("cuda:0", "thread")
    (pool, loop) = pools_of([[gpu, gpu, INLINE], [gpu, INLINE]], CORES)
    assert (pool.capacity, pool.lanes) == (2, ((0, 0), (0, 1), (1, 0)))
    assert loop.lanes == ((0, 2), (1, 1))


def test_lanes_of_one_model_form_no_pool():
    assert pools_of([[INLINE, pinned(1), pinned(1)]], CORES) == ()
