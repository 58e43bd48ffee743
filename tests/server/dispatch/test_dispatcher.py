"""The dispatcher on real lanes; with real runtimes where numbers matter, failing ones where order does."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.errors import FeatureError
from polyrec.models.runtimes import open_runtime
from polyrec.models.runtimes.runtime import Runtime
from polyrec.models.schema.batch import F32, Batch
from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import LaneKind, Limits, Routing
from polyrec.planner.routing.lanes.lane import LaneSpec
from polyrec.planner.routing.lanes.path import PathSpec
from polyrec.planner.routing.router import Router
from polyrec.planner.routing.router_state import RouterState
from polyrec.planner.routing.sharing.machine_time import ModelShare
from polyrec.planner.routing.sharing.pools import LanePlace
from polyrec.server.codecs.json_rows import Decoder
from polyrec.server.codecs.rows import Columns, Rows
from polyrec.server.dispatch.answer import Pending
from polyrec.server.dispatch.dispatcher import Dispatcher, clock
from polyrec.server.dispatch.executor import DEFECTS_UNTIL_LANE_IS_SUSPECT
from polyrec.server.dispatch.observer import ExecutedBatch
from polyrec.server.dispatch.shared_time import SharedTime
from polyrec.server.errors import DeadlinePassed, Defect, Invalid, NotReady, Overloaded
from polyrec.server.http.connection.body import ClientGone
from polyrec.server.lanes.inline import InlineLane
from polyrec.server.lanes.lane import Lane
from polyrec.server.lanes.threaded import ThreadedLane


class Tally:
    """Remembers the batches that it observed: (rows, queries)."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []

    def batch_executed(self, batched: ExecutedBatch) -> None:
        self.batches.append((batched.batch.rows, batched.queries))

    def lane_alive(self, lane: int, alive: bool) -> None:
        raise AssertionError("no lane dies here")

    def ticked(self, late_s: float, took_s: float) -> None:
        assert late_s >= 0
        assert took_s >= 0


class Troubled:
    """A runtime around another: fails on batches with an item of a given rank, or gives a fixed answer."""

    def __init__(
        self, runtime: Runtime, breaks_at_rank: int | None = None, answers: float | None = None
    ) -> None:
        self._runtime = runtime
        self._breaks_at = breaks_at_rank
        self._answers = answers
        self.name, self.device = runtime.name, runtime.device

    def embed(self, batch: Batch) -> Any:
        if self._breaks_at is not None and (batch.candidate.ranks[:, 0] == self._breaks_at).any():
            raise RuntimeError("the device is on fire")
        return self._runtime.embed(batch)

    def dense(self, embedded: Any) -> F32:
        p = self._runtime.dense(embedded)
        return p if self._answers is None else np.where(np.arange(p.size) == 0, self._answers, p)


class Held(Troubled):
    """Embeds when it is let go."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.entered, self.release = threading.Event(), threading.Event()

    def embed(self, batch: Batch) -> Any:
        self.entered.set()
        self.release.wait()
        return super().embed(batch)


@pytest.fixture(scope="module")
def runtime(bundle: Bundle) -> Runtime:
    return open_runtime("torch", bundle)


QUICK = LatencyModel(rows=(1, 1024), median_s=(1e-6, 1e-4), tail_s=(1e-6, 1e-4))


def dispatcher(bundle: Bundle, lane: Lane, kind: LaneKind, **limits: int) -> tuple[Dispatcher, Tally]:
    """One path on one lane."""
    bounds = Limits(**{"max_request_rows": 8, **limits})
    paths, lanes = [PathSpec("table@cpu", "cpu", 0.9, QUICK)], [LaneSpec("cpu", "cpu", kind)]
    router = Router(RouterState(paths, lanes, Routing(policy="static:table@cpu"), bounds, clock()))
    tally = Tally()
    return Dispatcher(router, [lane], ["table@cpu"], [bundle.encoder], tally), tally


@pytest.fixture(params=["inline", "thread"])
def kind(request: pytest.FixtureRequest) -> LaneKind:
    kind: LaneKind = request.param
    return kind


@pytest.fixture
def make(
    bundle: Bundle, runtime: Runtime, kind: LaneKind
) -> Iterator[Callable[..., tuple[Dispatcher, Tally]]]:
    lanes: list[Lane] = []

    def make(runtime: Any = runtime, **limits: int) -> tuple[Dispatcher, Tally]:
        runtimes = {"table@cpu": runtime}
        lane: Lane = InlineLane("cpu", runtimes) if kind == "inline" else ThreadedLane("cpu", runtimes)
        lanes.append(lane)
        return dispatcher(bundle, lane, kind, **limits)

    yield make
    for lane in lanes:
        lane.close()


@pytest.fixture(scope="module")
def ranking(bundle: Bundle) -> Callable[..., Columns]:
    """A ranking request for the given items."""
    decoder = Decoder(bundle.manifest.schema_, Limits())

    def rows(*items: str) -> Columns:
        listed = ",".join(f'{{"item": "{item}"}}' for item in items)
        return decoder.rank(f'{{"candidates": [{listed}]}}'.encode()).rows

    return rows


def submit(lane: Dispatcher, rows: Rows, budget_s: float = 60, arrived_s: float = 0.0) -> Pending:
    """arrived_s: seconds ago."""
    answer: Pending = lane.submit(rows, clock() - arrived_s, budget_s).payload.answer
    return answer


Make = Callable[..., tuple[Dispatcher, Tally]]
Ranking = Callable[..., Columns]


def items(bundle: Bundle, count: int) -> list[str]:
    values = bundle.encoder.vocabularies["item"].values
    assert values is not None
    return [str(v) for v in values.to_pylist()[:count]]


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


@pytest.mark.parametrize("kind", ["inline"])
def test_a_lone_query_is_executed_at_once_and_only_once(make: Make, ranking: Ranking) -> None:
    async def run() -> None:
        lane, tally = make()
        delivered: list[Pending] = []
        answer = submit(lane, ranking("a"))
        answer.listen(delivered.append)
        lane.dispatch_now()
        assert delivered == [answer]
        assert lane.waiting == 0
        lane.dispatch_now()
        later = submit(lane, ranking("a"))
        await later
        assert tally.batches == [(1, 1), (1, 1)]
        np.testing.assert_array_equal(answer.result().probabilities, later.result().probabilities)

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["inline"])
def test_queries_that_shared_their_last_batch_wait_for_one_another(make: Make, ranking: Ranking) -> None:
    async def run() -> None:
        lane, tally = make()
        await asyncio.gather(*(submit(lane, ranking("a")) for _ in range(2)))
        first = submit(lane, ranking("a"))
        lane.dispatch_now()
        assert not first.done()
        await asyncio.gather(first, submit(lane, ranking("a")))
        assert tally.batches == [(2, 2), (2, 2)]

    asyncio.run(run())


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


def test_a_query_that_breaks_a_batch_fails_alone(
    bundle: Bundle, runtime: Runtime, make: Make, ranking: Ranking, caplog: pytest.LogCaptureFixture
) -> None:
    known = items(bundle, 3)
    bad = int(ranking(known[1]).encode(bundle.encoder).candidate.ranks[0, 0])

    async def run() -> None:
        lane, tally = make(Troubled(runtime, breaks_at_rank=bad))
        pending = [submit(lane, ranking(item)) for item in known]
        with caplog.at_level(logging.CRITICAL, "polyrec.dispatcher"):
            answers = await asyncio.gather(*pending, return_exceptions=True)
        assert isinstance(answers[1], Defect)
        assert "on fire" not in str(answers[1])
        assert [a.batch_rows for i, a in enumerate(answers) if i != 1] == [1, 1]
        assert (await submit(lane, ranking(known[0]))).batch_rows == 1
        assert len(tally.batches) == 3

    asyncio.run(run())


def test_a_query_that_fails_in_a_batch_of_its_own_is_answered(
    bundle: Bundle, runtime: Runtime, make: Make, ranking: Ranking, caplog: pytest.LogCaptureFixture
) -> None:
    """Fewer in a row than make the lane suspect: each is the query's own failure."""
    sound, bad = items(bundle, 2)
    rank = int(ranking(bad).encode(bundle.encoder).candidate.ranks[0, 0])

    async def run() -> None:
        lane, _ = make(Troubled(runtime, breaks_at_rank=rank))
        with caplog.at_level(logging.CRITICAL, "polyrec.dispatcher"):
            for _ in range(2):
                for _ in range(DEFECTS_UNTIL_LANE_IS_SUSPECT - 1):
                    with pytest.raises(Defect):
                        await asyncio.wait_for(submit(lane, ranking(bad)), 30)
                await submit(lane, ranking(sound))

    asyncio.run(run())


def test_every_query_is_answered_where_many_break_before_one_succeeds(
    bundle: Bundle, runtime: Runtime, make: Make, ranking: Ranking, caplog: pytest.LogCaptureFixture
) -> None:
    """So many that the lane would be suspect, had not the last one shown that it works."""
    sound, bad = items(bundle, 2)
    rank = int(ranking(bad).encode(bundle.encoder).candidate.ranks[0, 0])

    async def run() -> None:
        lane, _ = make(Troubled(runtime, breaks_at_rank=rank))
        # groups are executed from the last one
        pending = [submit(lane, ranking(item)) for item in [sound, *[bad] * DEFECTS_UNTIL_LANE_IS_SUSPECT]]
        with caplog.at_level(logging.CRITICAL, "polyrec.dispatcher"):
            answered = asyncio.gather(*pending, return_exceptions=True)
            answers = await asyncio.wait_for(answered, 20)
        assert answers[0].batch_rows == 1
        assert [type(answer) for answer in answers[1:]] == [Defect] * DEFECTS_UNTIL_LANE_IS_SUSPECT
        assert lane.waiting == 0

    asyncio.run(run())


def test_a_query_that_cannot_be_encoded_fails_and_the_others_stay_one_batch(
    make: Make, ranking: Ranking
) -> None:
    too_long = ranking("a")
    names = too_long.names[0]
    too_long.context = [([str(i) for i in range(1000)],) if n == "filters" else None for n in names]

    async def run() -> None:
        lane, tally = make()
        pending = [submit(lane, ranking("a")), submit(lane, too_long), submit(lane, ranking("b", "c"))]
        answers = await asyncio.gather(*pending, return_exceptions=True)
        assert isinstance(answers[1], FeatureError)
        assert "filters" in str(answers[1])
        assert tally.batches == [(3, 2)]

    asyncio.run(run())


@pytest.mark.parametrize("nonsense", [np.nan, np.inf])
def test_a_probability_that_is_no_number_is_rejected_for_its_query_only(
    runtime: Runtime, make: Make, ranking: Ranking, nonsense: float
) -> None:
    async def run() -> None:
        lane, _ = make(Troubled(runtime, answers=nonsense))
        pending = [submit(lane, ranking("a", "b")), submit(lane, ranking("c"))]
        bad, good = await asyncio.gather(*pending, return_exceptions=True)
        assert isinstance(bad, Invalid)
        assert np.isfinite(good.probabilities).all()

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
        with pytest.raises(NotReady, match="not served any more"):
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
    made.share_time(SharedTime(frozenset({0})), [LanePlace("cpu", "thread")], ModelShare())
    assert made.turns is not None
    model = made.turns.model

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
