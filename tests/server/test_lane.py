"""The lane with a real runtime where numbers matter, and with one that fails or stalls where order does."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest

from models.batch import F32, Batch
from models.bundle import Bundle
from models.errors import FeatureError
from models.runtimes import open_runtime
from models.runtimes.runtime import Runtime
from planner.plan import Limits
from server.decode import Decoder
from server.driver import Driver, Inline, Threaded
from server.errors import DeadlinePassed, Defect, Invalid, Overloaded
from server.lane import Executed, Lane, clock
from server.rows import Columns, Rows


class Tally:
    """Remembers the batches it was told about: (rows, queries)."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []

    def batch_executed(self, executed: Executed, queries: int) -> None:
        self.batches.append((executed.batch.rows, queries))


class Troubled:
    """A runtime around another: fails on batches that hold a given rank, or answers what it is told."""

    def __init__(
        self, runtime: Runtime, breaks_at_rank: int | None = None, answers: float | None = None
    ) -> None:
        self._runtime = runtime
        self._breaks_at = breaks_at_rank
        self._answers = answers
        self.name, self.device = runtime.name, runtime.device

    def embed(self, batch: Batch) -> Any:
        if self._breaks_at is not None and (batch.candidate.ranks == self._breaks_at).any():
            raise RuntimeError("the device is on fire")
        return self._runtime.embed(batch)

    def dense(self, embedded: Any) -> F32:
        p = self._runtime.dense(embedded)
        return p if self._answers is None else np.where(np.arange(p.size) == 0, self._answers, p)


@pytest.fixture(scope="module")
def runtime(bundle: Bundle) -> Runtime:
    return open_runtime("torch", bundle)


@pytest.fixture(params=["inline", "thread"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    driver: Driver = Inline() if request.param == "inline" else Threaded("test")
    yield driver
    driver.close()


@pytest.fixture
def make(bundle: Bundle, runtime: Runtime, driver: Driver) -> Callable[..., tuple[Lane, Tally]]:
    def make(runtime: Any = runtime, **limits: int) -> tuple[Lane, Tally]:
        tally = Tally()
        limits = {"max_request_rows": 8, **limits}
        return Lane(bundle.encoder, runtime, Limits(**limits), driver, tally), tally

    return make


@pytest.fixture(scope="module")
def ranking(bundle: Bundle) -> Callable[..., Columns]:
    """A ranking request for the given items."""
    decoder = Decoder(bundle.manifest.schema_, Limits())

    def rows(*items: str) -> Columns:
        listed = ",".join(f'{{"item": "{item}"}}' for item in items)
        return decoder.rank(f'{{"candidates": [{listed}]}}'.encode()).rows

    return rows


def ask(lane: Lane, rows: Rows, budget_s: float = 60) -> Awaitable[Any]:
    return lane.ask(rows, clock(), budget_s)


Make = Callable[..., tuple[Lane, Tally]]
Ranking = Callable[..., Columns]


def items(bundle: Bundle, count: int) -> list[str]:
    values = bundle.encoder.vocabularies["item"].values
    assert values is not None
    return [str(v) for v in values.to_pylist()[:count]]


def test_queries_that_wait_together_are_one_batch_and_each_gets_its_own(
    bundle: Bundle, runtime: Runtime, make: Make, ranking: Ranking
) -> None:
    known = items(bundle, 6)
    asked = [ranking(*known[:3]), ranking(*known[3:5]), ranking(known[5])]

    async def run() -> None:
        lane, tally = make()
        answers = await asyncio.gather(*(ask(lane, rows) for rows in asked))
        assert tally.batches == [(6, 3)]
        for rows, answer in zip(asked, answers, strict=True):
            expected = runtime.predict(rows.encode(bundle.encoder))
            np.testing.assert_allclose(answer.probabilities, expected, atol=1e-6)
            assert answer.batch_rows == 6
            assert answer.queue_s >= 0
            assert answer.execute_s > 0
        assert lane.queued_rows == 0

    asyncio.run(run())


def test_batches_stop_at_their_limit_and_one_larger_query_runs_alone(make: Make, ranking: Ranking) -> None:
    async def run() -> None:
        lane, tally = make(max_batch_rows=4)
        sizes = (2, 2, 1, 6, 3)
        await asyncio.gather(*(ask(lane, ranking(*"abcdef"[:n])) for n in sizes))
        assert tally.batches == [(4, 2), (1, 1), (6, 1), (3, 1)]

    asyncio.run(run())


def test_a_full_queue_refuses_and_says_when_to_come_again(make: Make, ranking: Ranking) -> None:
    async def run() -> None:
        lane, _ = make(max_queued_rows=8)
        first = ask(lane, ranking(*"abcdefg"))
        with pytest.raises(Overloaded) as refused:
            ask(lane, ranking("a", "b"))
        assert refused.value.retry_after_s >= 1
        second = ask(lane, ranking("a"))
        await asyncio.gather(first, second)
        assert lane.queued_rows == 0
        await ask(lane, ranking("a", "b"))

    asyncio.run(run())


def test_a_query_whose_time_has_passed_is_not_executed(make: Make, ranking: Ranking) -> None:
    async def run() -> None:
        lane, tally = make()
        late, timely = lane.ask(ranking("a"), clock() - 1, 0.5), ask(lane, ranking("b", "c"))
        with pytest.raises(DeadlinePassed, match="500 ms"):
            await late
        await timely
        assert tally.batches == [(2, 1)]
        assert lane.queued_rows == 0

    asyncio.run(run())


def test_a_lane_of_only_late_queries_goes_on(make: Make, ranking: Ranking) -> None:
    async def run() -> None:
        lane, _ = make()
        with pytest.raises(DeadlinePassed):
            await lane.ask(ranking("a"), clock() - 1, 0.5)
        await ask(lane, ranking("a"))

    asyncio.run(run())


def test_a_cancelled_query_leaves_no_trace(make: Make, ranking: Ranking) -> None:
    async def run() -> None:
        lane, tally = make()
        gone, stays = lane.ask(ranking("a"), clock(), 60), ask(lane, ranking("b"))
        gone.cancel()
        await stays
        assert tally.batches == [(1, 1)]
        assert lane.queued_rows == 0

    asyncio.run(run())


def test_a_query_that_breaks_the_batch_takes_nobody_with_it(
    bundle: Bundle, runtime: Runtime, make: Make, ranking: Ranking, caplog: pytest.LogCaptureFixture
) -> None:
    known = items(bundle, 3)
    bad = int(ranking(known[1]).encode(bundle.encoder).candidate.ranks[0, 0])

    async def run() -> None:
        lane, tally = make(Troubled(runtime, breaks_at_rank=bad))
        asked = [ask(lane, ranking(item)) for item in known]
        with caplog.at_level(logging.CRITICAL, "polyrec.lane"):
            answers = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(answers[1], Defect)
        assert "on fire" not in str(answers[1])
        assert [a.batch_rows for i, a in enumerate(answers) if i != 1] == [1, 1]
        assert (await ask(lane, ranking(known[0]))).batch_rows == 1
        assert len(tally.batches) == 3

    asyncio.run(run())


def test_a_query_that_cannot_be_encoded_is_told_so_and_the_others_stay_one_batch(
    make: Make, ranking: Ranking
) -> None:
    too_long = ranking("a")
    names = too_long.names[0]
    too_long.context = [([str(i) for i in range(1000)],) if n == "filters" else None for n in names]

    async def run() -> None:
        lane, tally = make()
        asked = [ask(lane, ranking("a")), ask(lane, too_long), ask(lane, ranking("b", "c"))]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(answers[1], FeatureError)
        assert "filters" in str(answers[1])
        assert tally.batches == [(3, 2)]

    asyncio.run(run())


@pytest.mark.parametrize("nonsense", [np.nan, np.inf])
def test_a_probability_that_is_no_number_is_refused_for_its_query_only(
    runtime: Runtime, make: Make, ranking: Ranking, nonsense: float
) -> None:
    async def run() -> None:
        lane, _ = make(Troubled(runtime, answers=nonsense))
        asked = [ask(lane, ranking("a", "b")), ask(lane, ranking("c"))]
        bad, good = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(bad, Invalid)
        assert np.isfinite(good.probabilities).all()

    asyncio.run(run())


def test_closing_a_lane_cancels_what_waits(bundle: Bundle, runtime: Runtime, ranking: Ranking) -> None:
    async def run() -> None:
        lane = Lane(bundle.encoder, runtime, Limits(), Inline(), Tally())
        waiting = lane.ask(ranking("a"), clock(), 60)
        lane.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(run())


def test_a_thread_executes_while_the_loop_goes_on(bundle: Bundle, runtime: Runtime, ranking: Ranking) -> None:
    held, entered = threading.Event(), threading.Event()

    class Held(Troubled):
        def embed(self, batch: Batch) -> Any:
            entered.set()
            held.wait()
            return super().embed(batch)

    async def run() -> None:
        lane = Lane(bundle.encoder, Held(runtime), Limits(), Threaded("held"), tally := Tally())
        first = ask(lane, ranking("a"))
        while not entered.is_set():
            await asyncio.sleep(0)
        rest = [ask(lane, ranking(item)) for item in "bcd"]
        assert lane.queued_rows == 3
        held.set()
        await asyncio.gather(first, *rest)
        assert tally.batches == [(1, 1), (3, 3)]
        lane.close()

    asyncio.run(run())
