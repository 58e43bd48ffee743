"""Tests the promises of every kind of lane."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.models.runtimes.runtime import Runtime
from polyrec.planner.plan import PlannedLane
from polyrec.server.lanes.lane import Executed, Lane
from polyrec.server.lanes.opening import LaneOpening, Paths
from tests.server.lanes.conftest import MakeBatch
from tests.server.lanes.lane_calls import executed

PATHS = ("table-torch@cpu", "table-onnx@cpu")


@given(
    path=st.sampled_from(PATHS),
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 50),
    contexts=st.none() | st.integers(1, 60),
)
@settings(max_examples=40)
def test_lane_returns_its_runtimes_predictions(
    lane: Lane,
    runtimes: dict[str, Runtime],
    make_batch: MakeBatch,
    path: str,
    seed: int,
    rows: int,
    contexts: int | None,
) -> None:
    batch = make_batch(seed, rows, contexts)
    got = asyncio.run(executed(lane, path, batch))
    np.testing.assert_allclose(got.probabilities, runtimes[path].predict(batch), rtol=0, atol=1e-6)
    assert got.took_s == got.embed_s + got.dense_s > 0


def test_an_answer_outlives_the_next_batch(lane: Lane, make_batch: MakeBatch) -> None:
    async def two() -> None:
        first = (await executed(lane, PATHS[0], make_batch(1, 20))).probabilities
        kept = first.copy()
        second = (await executed(lane, PATHS[0], make_batch(2, 20))).probabilities
        np.testing.assert_array_equal(first, kept)
        assert (first != second).any()

    asyncio.run(two())


def test_runtime_errors_are_reported_and_the_lane_continues(
    lane: Lane, make_batch: MakeBatch, runtimes: dict[str, Runtime]
) -> None:
    wrong, right = make_batch(1, 4), make_batch(2, 4)
    wrong.candidate.ranks[0, 0] = 10**9

    async def both() -> Executed:
        with pytest.raises(Exception, match="index out of range"):
            await executed(lane, PATHS[0], wrong)
        return await executed(lane, PATHS[0], right)

    got = asyncio.run(both())
    np.testing.assert_allclose(got.probabilities, runtimes[PATHS[0]].predict(right), rtol=0, atol=1e-6)
    assert lane.alive


def test_a_batch_is_settled_on_the_event_loop(lane: Lane, make_batch: MakeBatch) -> None:
    async def settled_on() -> threading.Thread:
        where: asyncio.Future[threading.Thread] = asyncio.get_running_loop().create_future()
        lane.execute(PATHS[0], make_batch(3, 5), lambda _: where.set_result(threading.current_thread()))
        return await where

    assert asyncio.run(settled_on()) is threading.current_thread()


@pytest.fixture
def other(lane: Lane, paths: Paths) -> Iterator[Lane]:
    """A second lane of the same kind."""
    other = LaneOpening(PlannedLane(name="other", kind=lane.kind), paths[:1], lambda _: None).open()
    yield other
    other.close()


def test_two_lanes_answer_at_the_same_time_and_close_alone(
    lane: Lane, other: Lane, make_batch: MakeBatch, runtimes: dict[str, Runtime]
) -> None:
    settled: list[object] = []

    async def both() -> list[Executed]:
        batches = [make_batch(seed, 30) for seed in range(10)]
        found = []
        for mine, its in zip(batches[::2], batches[1::2], strict=True):
            found += await asyncio.gather(executed(lane, PATHS[0], mine), executed(other, PATHS[0], its))
        other.execute(PATHS[0], make_batch(10, 20_000), settled.append)
        other.close()
        found.append(await executed(lane, PATHS[0], make_batch(10, 30)))
        return found

    for seed, got in enumerate(asyncio.run(both())):
        expected = runtimes[PATHS[0]].predict(make_batch(seed, 30))
        np.testing.assert_allclose(got.probabilities, expected, rtol=0, atol=1e-6)
    assert (lane.alive, other.alive) == (True, False)
    assert len(settled) == (lane.kind == "inline"), "a closed lane settles nothing any more"
