"""Executed batches, as they are reported to the router."""

from __future__ import annotations

import asyncio
import os
import threading
import zlib
from dataclasses import replace

import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.runtimes import open_runtime
from polyrec.models.schema.batch import Batch
from polyrec.planner.plan import LaneKind
from polyrec.planner.routing.router_state import RouterState
from polyrec.server.clock import clock
from polyrec.server.dispatch.observer import ExecutedBatch
from polyrec.server.errors import Defect
from polyrec.server.lanes.inline import InlineLane
from polyrec.server.lanes.lane import Executed, Settle
from tests.server.dispatch.dispatching import Ranking, Tally, dispatcher, submit

SPENT_S = 0.2


@pytest.fixture(autouse=True)
def _no_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick would begin the sum of the lane's seconds anew."""
    monkeypatch.setattr("polyrec.server.dispatch.control_loop.TICK_S", 1e3)


class WaitingLane(InlineLane):
    """A lane whose batches take SPENT_S longer, and that then reports a wait for a processor.

    The executor itself measures the waits of inline lanes.
    """

    kind: LaneKind = "thread"
    waited_s = 0.0

    def execute(self, path: str, batch: Batch, settle: Settle) -> None:
        begun_s = clock()
        while clock() < begun_s + SPENT_S:
            pass

        def settle_later(outcome: Executed | Exception) -> None:
            assert isinstance(outcome, Executed)
            settle(replace(outcome, waited_s=self.waited_s))

        super().execute(path, batch, settle_later)


def executed(bundle: Bundle, ranking: Ranking, waited_s: float) -> tuple[RouterState, float]:
    """The router's state after a batch of two rows, and the seconds of all."""
    lane = WaitingLane("cpu", {"table@cpu": open_runtime("torch", bundle)})
    lane.waited_s = waited_s
    made, tally = dispatcher(bundle, lane, "inline")

    async def run() -> None:
        await submit(made, ranking("a", "b"))

    begun_s = clock()
    try:
        asyncio.run(run())
    finally:
        made.close()
    assert tally.batches == [(2, 1)]
    return made.router.state, clock() - begun_s


def test_cpu_waits_do_not_count_as_lane_speed(bundle: Bundle, ranking: Ranking) -> None:
    state, whole_s = executed(bundle, ranking, 0.0)
    assert SPENT_S <= state.lanes[0].busy_s <= whole_s
    state, whole_s = executed(bundle, ranking, SPENT_S)
    assert 0 < state.lanes[0].busy_s <= whole_s - SPENT_S


def test_a_wait_longer_than_the_batch_says_nothing_of_its_speed(bundle: Bundle, ranking: Ranking) -> None:
    """A part of it was before the batch."""
    state, _ = executed(bundle, ranking, 1e6)
    assert state.lanes[0].busy_s == pytest.approx(state.paths[0].latency.median[2])
    assert state.lanes[0].correction.quickest == [1.0]


def test_waits_of_an_inline_lane_for_a_cpu_are_reported_beside_its_speed(
    bundle: Bundle, ranking: Ranking
) -> None:
    """Another thread computes on the same core, without the interpreter's lock."""
    if not os.path.exists("/proc/thread-self/schedstat"):
        pytest.skip("this kernel does not count waits")
    made, _ = dispatcher(bundle, InlineLane("cpu", {"table@cpu": open_runtime("torch", bundle)}), "inline")
    lane, before, done = made.router.state.lanes[0], os.sched_getaffinity(0), threading.Event()

    def compute() -> None:
        data = bytes(1 << 16)
        while not done.is_set():
            zlib.crc32(data)

    async def run() -> None:
        for _ in range(20_000):
            await submit(made, ranking("a", "b"))
            if lane.waited_s > 0:
                break

    other = threading.Thread(target=compute)
    begun_s = clock()
    os.sched_setaffinity(0, {min(before)})
    try:
        other.start()
        asyncio.run(run())
    finally:
        done.set()
        other.join()
        os.sched_setaffinity(0, before)
        made.close()
    assert lane.waited_s > 0
    assert lane.busy_s + lane.waited_s <= clock() - begun_s


class FullLane(InlineLane):
    """A lane that cannot take its first batches."""

    refuses = 0

    def execute(self, path: str, batch: Batch, settle: Settle) -> None:
        if self.refuses:
            self.refuses -= 1
            raise MemoryError("no memory for a batch")
        super().execute(path, batch, settle)


@pytest.mark.parametrize(("refuses", "answered"), [(1, [True, True, True]), (2, [True, True, False])])
def test_a_lane_that_cannot_take_a_batch_is_free_for_the_next(
    bundle: Bundle, ranking: Ranking, refuses: int, answered: list[bool]
) -> None:
    """The queries are tried one by one, as after a failed execution."""
    lane = FullLane("cpu", {"table@cpu": open_runtime("torch", bundle)})
    lane.refuses = refuses
    made, _ = dispatcher(bundle, lane, "inline")

    async def run() -> None:
        together = [submit(made, ranking("a")) for _ in range(3)]
        found = await asyncio.gather(*together, return_exceptions=True)
        assert sorted(isinstance(answer, Defect) for answer in found) == sorted(not ok for ok in answered)
        await submit(made, ranking("a"))

    try:
        asyncio.run(run())
    finally:
        made.close()


class BrokenOnce(Tally):
    """An observer with a defect that shows once."""

    def batch_executed(self, executed: ExecutedBatch) -> None:
        super().batch_executed(executed)
        if len(self.batches) == 1:
            raise ValueError("cannot count it")


@pytest.mark.parametrize("queries", [1, 3])
def test_a_batch_that_cannot_be_counted_is_answered_and_its_lane_free(
    bundle: Bundle, ranking: Ranking, queries: int, caplog: pytest.LogCaptureFixture
) -> None:
    lane = InlineLane("cpu", {"table@cpu": open_runtime("torch", bundle)})
    made, _ = dispatcher(bundle, lane, "inline")
    made._executor.observer = BrokenOnce()

    async def run() -> None:
        await asyncio.gather(*(submit(made, ranking("a")) for _ in range(queries)))
        await submit(made, ranking("a"))

    try:
        asyncio.run(run())
    finally:
        made.close()
    assert "could not be distributed" in caplog.text
