"""The dispatcher on real lanes; with real runtimes where numbers matter, held ones where order does."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import uvloop

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.runtimes.runtime import Runtime
from polyrec.planner.routing.query import Query
from polyrec.planner.routing.sharing.machine_time import MachineTime, ModelShare
from polyrec.planner.routing.sharing.pools import LanePlace
from polyrec.server.clock import clock
from polyrec.server.dispatch.answer import Pending
from polyrec.server.dispatch.dispatcher import Dispatcher
from polyrec.server.errors import DeadlinePassed, NotReady, Overloaded
from polyrec.server.http.connection.body import ClientGone
from polyrec.server.lanes.inline import InlineLane
from polyrec.server.lanes.threaded import ThreadedLane
from tests.server.dispatch.dispatching import Held, Make, Ranking, dispatcher, items, submit


def test_queries_that_wait_together_are_one_batch_and_each_gets_its_own(
    bundle: Bundle, runtime: Runtime, make: Make, ranking: Ranking
) -> None:
    known = items(bundle, 6)
    requests = [ranking(*known[:3]), ranking(*known[3:5]), ranking(known[5])]

    async def run() -> None:
        lane, tally = make()
        answers = await asyncio.gather(*(submit(lane, rows) for rows in requests))
        assert tally.batches == [(6, 3)]
        for rows, answer in zip(requests, answers, strict=True):
            expected = runtime.predict(rows.encode(bundle.encoder))
            np.testing.assert_allclose(answer.probabilities, expected, atol=1e-6)
            assert answer.batch_rows == 6
            assert answer.queue_s >= 0
            assert answer.execute_s > 0
        assert lane.waiting == 0

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["inline"])
def test_answers_leave_before_the_loop_reads_more(make: Make, ranking: Ranking) -> None:
    """In the turn that executed them: past capacity, what came meanwhile takes as long to read as a batch."""

    async def run() -> None:
        lane, _ = make()
        delivered: list[Pending] = []
        pending = [submit(lane, ranking("a")) for _ in range(3)]
        for answer in pending:
            answer.listen(delivered.append)
        while not pending[0].done():
            await asyncio.sleep(0)
        assert delivered == pending

    asyncio.run(run())


class Passes:
    """Counts the passes of a dispatcher over its lanes, without those of ticks."""

    def __init__(self, lane: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._expire = lane.router.expire
        monkeypatch.setattr(lane.router, "expire", self._counted)
        monkeypatch.setattr("polyrec.server.dispatch.control_loop.TICK_S", 1e3)

    def _counted(self, now_s: float) -> list[Query]:
        self.count += 1
        return self._expire(now_s)


@pytest.mark.parametrize("kind", ["inline"])  # a slow thread would count as stalled, which is a pass too
def test_a_lane_that_becomes_free_is_given_no_work_if_nothing_waits(
    make: Make, ranking: Ranking, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        lane, tally = make(max_batch_rows=4)
        passes = Passes(lane, monkeypatch)
        for queries, expected in ((1, 1), (3, 1 + 3)):
            await asyncio.gather(*(submit(lane, ranking(*"abcd")) for _ in range(queries)))
            for _ in range(4):
                await asyncio.sleep(0)
            assert passes.count == expected
        assert tally.batches == [(4, 1)] * 4

    asyncio.run(run())


def test_deadlines_between_the_ticks_of_a_coarse_timer_do_not_keep_the_loop_busy(
    bundle: Bundle, runtime: Runtime, ranking: Ranking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop's timers have a resolution of 1 ms and fire too early, with up to 50 passes until the time."""
    deadlines = 10

    async def run() -> None:
        held = Held(runtime)
        lane, _ = dispatcher(bundle, ThreadedLane("cpu", {"table@cpu": held}), "thread")
        passes = Passes(lane, monkeypatch)
        first = submit(lane, ranking("a"))
        await asyncio.get_running_loop().run_in_executor(None, held.entered.wait)
        late = [submit(lane, ranking("b"), 0.05 + 0.0033 * i) for i in range(deadlines)]
        for outcome in await asyncio.gather(*late, return_exceptions=True):
            assert isinstance(outcome, DeadlinePassed)
        assert passes.count <= 4 * deadlines
        held.release.set()
        await first
        lane.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def test_batches_stop_at_their_limit_and_a_larger_query_is_split_and_joined(
    bundle: Bundle, runtime: Runtime, make: Make, ranking: Ranking
) -> None:
    known = items(bundle, 6)

    async def run() -> None:
        lane, tally = make(max_batch_rows=4)
        sizes = (2, 2, 1, 6, 3)
        answers = await asyncio.gather(*(submit(lane, ranking(*known[:n])) for n in sizes))
        assert tally.batches == [(4, 2), (1, 1), (3, 1), (3, 1), (3, 1)]
        expected = runtime.predict(ranking(*known).encode(bundle.encoder))
        np.testing.assert_allclose(answers[3].probabilities, expected, atol=1e-6)

    asyncio.run(run())


def test_a_full_queue_refuses_and_says_when_to_come_again(make: Make, ranking: Ranking) -> None:
    async def run() -> None:
        lane, _ = make(max_queued_rows=8)
        first = submit(lane, ranking(*"abcdefg"))
        with pytest.raises(Overloaded) as caught:
            submit(lane, ranking("a", "b"))
        assert caught.value.retry_after_s >= 1
        second = submit(lane, ranking("a"))
        await asyncio.gather(first, second)
        assert lane.waiting == 0
        await submit(lane, ranking("a", "b"))

    asyncio.run(run())


def test_a_query_whose_time_has_passed_is_not_executed(make: Make, ranking: Ranking) -> None:
    async def run() -> None:
        lane, tally = make()
        with pytest.raises(DeadlinePassed, match="500 ms"):
            submit(lane, ranking("a"), 0.5, arrived_s=1)
        await submit(lane, ranking("b", "c"))
        assert tally.batches == [(2, 1)]
        assert lane.waiting == 0

    asyncio.run(run())


def test_a_canceled_query_is_not_executed(make: Make, ranking: Ranking) -> None:
    async def run() -> None:
        lane, tally = make()
        query = lane.submit(ranking("a"), clock(), 60)
        stays = submit(lane, ranking("b"))
        lane.cancel(query, ClientGone("the client closed the connection"))
        with pytest.raises(ClientGone):
            await query.payload.answer
        await stays
        assert tally.batches == [(1, 1)]
        assert lane.waiting == 0

    asyncio.run(run())


def test_closing_cancels_what_waits_and_rejects_what_comes(
    bundle: Bundle, runtime: Runtime, ranking: Ranking
) -> None:
    async def run() -> None:
        lane, _ = dispatcher(bundle, InlineLane("cpu", {"table@cpu": runtime}), "inline")
        waiting = submit(lane, ranking("a"))
        lane.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(NotReady, match="no longer served"):
            submit(lane, ranking("b"))

    asyncio.run(run())


def test_a_thread_executes_while_the_loop_goes_on(bundle: Bundle, runtime: Runtime, ranking: Ranking) -> None:
    async def run() -> None:
        held = Held(runtime)
        lane, tally = dispatcher(bundle, ThreadedLane("cpu", {"table@cpu": held}), "thread")
        first = submit(lane, ranking("a"))
        while not held.entered.is_set():
            await asyncio.sleep(0)
        rest = [submit(lane, ranking(item)) for item in "bcd"]
        assert lane.waiting == 4
        held.release.set()
        await asyncio.gather(first, *rest)
        assert tally.batches == [(1, 1), (3, 3)]
        lane.close()

    asyncio.run(run())


def test_the_loop_is_at_rest_while_a_query_waits_for_a_lane(
    bundle: Bundle, runtime: Runtime, ranking: Ranking
) -> None:
    held = Held(runtime)
    lane = ThreadedLane("cpu", {"table@cpu": held})
    made, _ = dispatcher(bundle, lane, "thread")
    made.share_time(MachineTime(frozenset({0})), [LanePlace("cpu", "thread")], ModelShare())
    assert made.sharing is not None
    model = made.sharing

    async def run() -> int:
        answers = [submit(made, ranking(4))]
        await asyncio.get_running_loop().run_in_executor(None, held.entered.wait)
        answers.append(submit(made, ranking(4)))
        for _ in range(10):
            await asyncio.sleep(0)
        passes = model.passes
        for _ in range(300):
            await asyncio.sleep(0)
        passes = model.passes - passes
        held.release.set()
        for answer in answers:
            await answer
        return passes

    try:
        # one for a tick, perhaps
        assert asyncio.run(run()) < 20
    finally:
        held.release.set()
        made.close()


def test_a_query_behind_a_long_batch_expires_at_its_deadline(
    bundle: Bundle, runtime: Runtime, ranking: Ranking
) -> None:
    """triton-inference-server/server#7512: there it is answered only when the batch in front is over."""

    async def run() -> None:
        held = Held(runtime)
        lane, tally = dispatcher(bundle, ThreadedLane("cpu", {"table@cpu": held}), "thread")
        first = submit(lane, ranking("a"))
        while not held.entered.is_set():
            await asyncio.sleep(0)
        behind = submit(lane, ranking("b"), budget_s=0.05)
        with pytest.raises(DeadlinePassed):
            await behind
        assert not first.done()
        assert not tally.batches
        held.release.set()
        await first
        lane.close()

    asyncio.run(run())
