"""Holding of cold queries: hot ones do not wait for them, and answers are those of all rows in memory."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import orjson
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.errors import FeatureError
from polyrec.models.schema.batch import F32
from polyrec.models.tiers.stage import fused_rows
from polyrec.models.tiers.updates.update import TableUpdate, apply_update
from polyrec.planner.plan import Plan
from polyrec.planner.routing.query import Dispatch, Part, Query, Reason
from polyrec.server.app.engine import Engine
from polyrec.server.app.serving import Serving
from polyrec.server.clock import clock
from polyrec.server.codecs.rows import encode
from polyrec.server.dispatch.answer import Answer, Outbox, Pending, QueryPayload
from polyrec.server.dispatch.cold_rows import ColdRows
from polyrec.server.dispatch.parts import encode_parts, scatter
from polyrec.server.lanes.tiered_runtime import BatchView
from tests.models.tiers.redis_server import RedisServer
from tests.server.conftest import Request, in_memory
from tests.server.placing import placed_plan

BUDGET_S = 60.0


def body(request: Request) -> bytes:
    return orjson.dumps({"columns": request.columns})


def submit(serving: Serving, content: bytes, budget_s: float = BUDGET_S) -> Query:
    rows = serving.json_decoder.predict(content)
    return serving.dispatcher.submit(rows, clock(), budget_s)


async def dispatched() -> None:
    """Returns after a dispatch: it comes in the second iteration of the event loop from now."""
    for _ in range(2):
        await asyncio.sleep(0)


def eighth(rows: int) -> dict[str, int]:
    """Puts an eighth of a table in memory, the rest on disk."""
    return {"host": rows // 8, "disk": rows - rows // 8}


def far(rows: int) -> dict[str, int]:
    """Puts a quarter of a table in memory, a quarter on disk, the rest in a store."""
    quarter = rows // 4
    return {"host": quarter, "disk": quarter, "remote": rows - 2 * quarter}


def barely(rows: int) -> dict[str, int]:
    """Puts the coldest quarter of a table in a store."""
    return {"host": rows - rows // 4, "remote": rows // 4}


@pytest.mark.parametrize("lane", ["inline", "thread"])
@pytest.mark.parametrize("seed", range(4))
def test_answers_equal_those_in_memory_whatever_is_hot_or_cold(
    lane: str,
    seed: int,
    opened: Callable[[Plan], Engine],
    paged: Bundle,
    single_valued: Bundle,
    requests: list[Request],
    store: RedisServer,
    tmp_path: Path,
) -> None:
    random = np.random.default_rng(seed)
    remote = {"url": store.url, "fill": True, "timeout_ms": 20_000}
    bundle, cuts = paged, (eighth, far, far, barely)[seed]
    if seed >= 2:
        bundle = single_valued
        requests = [Request(request.table, bundle.manifest.schema_) for request in requests]
    engines = {
        ahead: opened(
            placed_plan(
                *(bundle, tmp_path, cuts),
                lane=lane,
                lanes=1 if lane == "inline" else 2,
                **({"remote": remote} if seed else {}),
                popular_first=ahead,
            )
        )
        for ahead in (True, False)
    }
    right = list(map(in_memory(bundle), requests[:40]))

    async def run(engine: Engine, waves: Sequence[Sequence[int]]) -> list[tuple[int, Answer]]:
        queries: list[tuple[int, Query]] = []
        for wave in waves:
            queries += [(i, submit(engine.serving, body(requests[i]))) for i in wave]
            if queries and random.random() < 0.3:
                await queries[-1][1].payload.answer
            await asyncio.sleep(0)
        answers = [(i, await query.payload.answer) for i, query in queries]
        until_s = clock() + 30
        # a batch that another lane has answered meanwhile may still be in its lane
        while any(stack.views.newest.readers for stack in engine.stacks().values()) and clock() < until_s:
            await asyncio.sleep(0.001)
        return answers

    waves = [random.integers(0, len(right), random.integers(1, 6)).tolist() for _ in range(25)]
    for ahead, engine in engines.items():
        answers = asyncio.run(run(engine, waves))
        for i, answer in answers:
            np.testing.assert_allclose(answer.probabilities, right[i], rtol=0, atol=1e-6)
            assert not answer.degraded
        cold = engine.serving.tiers.cold_rows
        assert (cold is not None) == ahead
        if cold is not None:
            assert cold.figures.hot + cold.figures.cold == len(answers)
            assert engine.serving.dispatcher.router.state.queue.rows == 0
            assert cold.figures.rows_read == cold.figures.cold > 0
            assert cold.figures.waited_s > 0
        assert all(not stack.views.newest.readers for stack in engine.stacks().values())


def pair(serving: Serving, bundle: Bundle, requests: Sequence[Request]) -> tuple[Request, Request]:
    """A request with all rows in memory, and one that needs the store."""
    (stack,), rows = serving.tiers.distinct, fused_rows(bundle.stage())
    assert rows is not None
    found: dict[bool, Request] = {}
    for request in requests:
        batch = serving.json_decoder.predict(body(request)).encode(bundle.encoder)
        found.setdefault(stack.ahead.missing(rows.lookups(batch).rows()).nothing, request)
    return found[True], found[False]


OpenBesideStore = Callable[..., Serving]


@pytest.fixture
def beside_store(
    opened: Callable[[Plan], Engine], paged: Bundle, store: RedisServer, tmp_path: Path
) -> OpenBesideStore:
    """Serves with the coldest rows in a store and popular queries first."""

    def serving(timeout_ms: int = 30_000, **options: str) -> Serving:
        remote = {"url": store.url, "fill": True, "timeout_ms": timeout_ms}
        plan = placed_plan(paged, tmp_path, barely, remote=remote, popular_first=True, **options)
        return opened(plan).serving

    return serving


def test_a_hot_query_does_not_wait_for_the_look_up_of_a_cold_one_that_came_first(
    opened: Callable[[Plan], Engine],
    single_valued: Bundle,
    requests: list[Request],
    store: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remote = {"url": store.url, "fill": True, "timeout_ms": 30_000}
    options = {"remote": remote, "popular_first": True, "lane": "inline"}
    serving = opened(placed_plan(single_valued, tmp_path, barely, **options)).serving
    own = [Request(request.table, single_valued.manifest.schema_) for request in requests]
    hot, cold = pair(serving, single_valued, own)
    happened: list[str] = []
    find_cold, settle = ColdRows.find_cold, Pending.settle
    monkeypatch.setattr(ColdRows, "find_cold", lambda *args: (happened.append("look-up"), find_cold(*args)))
    monkeypatch.setattr(Pending, "settle", lambda *args: (happened.append("answer"), settle(*args)))

    async def run() -> None:
        queries = [submit(serving, body(request)) for request in (cold, hot)]
        for query in queries:
            assert not (await query.payload.answer).degraded
        # alone, nothing is set aside
        await submit(serving, body(cold)).payload.answer

    asyncio.run(run())
    assert happened == ["answer", "look-up", "answer", "look-up", "answer"]
    assert serving.tiers.cold_rows is not None
    assert serving.tiers.cold_rows.figures.hot == 1
    assert serving.tiers.cold_rows.figures.cold == 2


@pytest.mark.parametrize("lane", ["inline", "thread"])
def test_a_hot_query_overtakes_a_cold_one_whose_read_is_held_up(
    lane: str,
    beside_store: OpenBesideStore,
    paged: Bundle,
    requests: list[Request],
    whole: Callable[[Request], F32],
    store: RedisServer,
) -> None:
    serving = beside_store(lane=lane)
    hot, cold = pair(serving, paged, requests)

    async def run() -> None:
        store.signal(signal.SIGSTOP)
        try:
            slow = submit(serving, body(cold))
            for _ in range(3):
                quick = await submit(serving, body(hot)).payload.answer
                np.testing.assert_allclose(quick.probabilities, whole(hot), rtol=0, atol=1e-6)
                assert not slow.payload.answer.done()
            assert slow.reading
        finally:
            store.signal(signal.SIGCONT)
        answer = await slow.payload.answer
        np.testing.assert_allclose(answer.probabilities, whole(cold), rtol=0, atol=1e-6)
        assert not answer.degraded

    asyncio.run(run())


def test_a_hot_query_is_answered_before_the_reads_of_a_cold_one_begin(
    beside_store: OpenBesideStore,
    paged: Bundle,
    requests: list[Request],
) -> None:
    serving = beside_store(lane="inline")
    hot, cold = pair(serving, paged, requests)
    begun: list[bool] = []

    async def run() -> None:
        slow, quick = submit(serving, body(cold)), submit(serving, body(hot))
        quick.payload.answer.listen(lambda _: begun.append(bool(slow.payload.looked_up.view_users)))
        await dispatched()
        assert begun == [False]
        assert slow.payload.looked_up.view_users == {slow}
        assert not (await slow.payload.answer).degraded

    asyncio.run(run())


def test_a_cold_query_makes_its_deadline_without_the_rows_that_never_come(
    beside_store: OpenBesideStore,
    paged: Bundle,
    requests: list[Request],
    store: RedisServer,
) -> None:
    serving = beside_store(timeout_ms=300)
    _, cold = pair(serving, paged, requests)

    async def run() -> Answer:
        store.signal(signal.SIGSTOP)
        try:
            answer: Answer = await submit(serving, body(cold), 20.0).payload.answer
            return answer
        finally:
            store.signal(signal.SIGCONT)

    answer = asyncio.run(run())
    assert answer.reason == "failure"


def test_a_cold_query_that_can_wait_no_longer_reads_in_its_batch(
    beside_store: OpenBesideStore,
    paged: Bundle,
    requests: list[Request],
    whole: Callable[[Request], F32],
) -> None:
    serving = beside_store()
    _, cold = pair(serving, paged, requests)
    router = serving.dispatcher.router

    async def run() -> None:
        query = submit(serving, body(cold))
        await dispatched()
        (until_s,) = router.state.queue.held.values()
        assert until_s < query.deadline_s
        # as if so much time had passed: its reads have not been reported yet
        router.expire(until_s)
        assert not router.state.queue.held
        assert [piece.query for piece in router.state.queue.pieces] == [query]
        answer = await query.payload.answer
        np.testing.assert_allclose(answer.probabilities, whole(cold), rtol=0, atol=1e-6)

    asyncio.run(run())


def test_an_update_during_the_reads_of_a_query_is_in_its_answer(
    opened: Callable[[Plan], Engine],
    paged: Bundle,
    requests: list[Request],
    whole: Callable[[Request], F32],
    store: RedisServer,
    tmp_path: Path,
) -> None:
    remote = {"url": store.url, "fill": True, "timeout_ms": 30_000}
    plan = placed_plan(paged, tmp_path, lambda n: {"remote": n}, remote=remote, popular_first=True)
    engine = opened(plan)
    serving, stack = engine.serving, engine.stacks()["table@cpu"]
    request = requests[0]
    update = {
        table: TableUpdate(np.arange(v.rows), np.full((v.rows, 64), 0.25, np.float32))
        for table, v in paged.encoder.vocabularies.items()
    }

    async def run() -> F32:
        query = submit(serving, body(request))
        await dispatched()
        held = stack.views.newest
        assert held.readers == 1
        apply_update(stack, update)
        assert not stack.settle(0.0), "what was fetched before the update must not outlive its layer"
        answer: Answer = await query.payload.answer
        assert stack.settle(30)
        again: Answer = await submit(serving, body(request)).payload.answer
        np.testing.assert_allclose(again.probabilities, answer.probabilities, rtol=0, atol=1e-6)
        return answer.probabilities

    assert np.abs(asyncio.run(run()) - whole(request)).max() > 1e-3


def test_a_query_that_cannot_be_encoded_fails_alone(
    opened: Callable[[Plan], Engine], paged: Bundle, requests: list[Request], tmp_path: Path
) -> None:
    serving = opened(placed_plan(paged, tmp_path, lambda n: {"disk": n}, popular_first=True)).serving
    cold_rows = serving.tiers.cold_rows
    assert cold_rows is not None

    async def run() -> None:
        queries = [submit(serving, body(request)) for request in requests[:5]]
        wrong = submit(serving, b'{"instances": [{"price_rank": 1e39}]}')
        with pytest.raises(FeatureError, match="price_rank"):
            await wrong.payload.answer
        for query in queries:
            await query.payload.answer
            assert query.payload.looked_up is None, "a cycle would keep its arrays until a garbage collection"
        assert cold_rows.figures.hot + cold_rows.figures.cold == len(queries), "not all rows were looked for"

    asyncio.run(run())


def test_a_hot_query_is_not_degraded_by_rows_that_a_cold_one_of_its_batch_lost(
    beside_store: OpenBesideStore, paged: Bundle, requests: list[Request]
) -> None:
    serving = beside_store()
    cold_rows, (stack,) = serving.tiers.cold_rows, serving.tiers.distinct
    assert cold_rows is not None

    async def run() -> None:
        parts = []
        for request in pair(serving, paged, requests):
            rows = serving.json_decoder.predict(body(request))
            query = Query(rows.rows, 0.0, BUDGET_S)
            query.payload = QueryPayload(rows, Pending(Outbox(asyncio.get_running_loop())))
            parts.append(Part(query, 0, query.rows))
        (looked_up,) = cold_rows.look_up(None, [part.query for part in parts])
        cold_rows.find_cold(looked_up)
        for part in parts:
            part.query.payload.looked_up = looked_up
        view = BatchView.enter(stack)
        view.lost = 1
        count = sum(part.rows for part in parts)
        dispatch = Dispatch(0, 0, parts, count, Reason.BEST, 0.0, 1e-3, 1e-3)
        scatter(dispatch, parts, np.ones(count, np.float32), 1e-3, view)
        view.leave()
        assert [(await part.query.payload.answer).reason for part in parts] == [None, "failure"]

    asyncio.run(run())


def test_rows_encoded_on_arrival_are_a_batch_of_these_queries_alone(
    opened: Callable[[Plan], Engine], paged: Bundle, requests: list[Request], tmp_path: Path
) -> None:
    serving = opened(placed_plan(paged, tmp_path, lambda n: {"disk": n}, popular_first=True)).serving
    cold_rows, encoder = serving.tiers.cold_rows, serving.tiers.distinct[0].views.newest.encoder
    assert cold_rows is not None
    assert encoder is not None

    async def run() -> None:
        queries = []
        for request in requests[:3]:
            rows = serving.json_decoder.predict(body(request))
            query = Query(rows.rows, 0.0, BUDGET_S)
            query.payload = QueryPayload(rows, Pending(Outbox(asyncio.get_running_loop())))
            queries.append(query)
        first, second, third = (Part(query, 0, query.rows) for query in queries)
        (looked_up,) = cold_rows.look_up(None, queries[:2])
        for query in queries[:2]:
            query.payload.looked_up = looked_up
        half = Part(first.query, first.rows // 2, first.rows - first.rows // 2)
        for parts in ([first, second], [first, third], [second, first], [first], [half, second]):
            _, batch = encode_parts(list(parts), encoder)
            assert batch is not None
            right = encode([part.query.payload.rows.part(part.first, part.rows) for part in parts], encoder)
            np.testing.assert_array_equal(batch.candidate.ranks, right.candidate.ranks)
            np.testing.assert_array_equal(batch.context.ranks, right.context.ranks)
            assert (batch is looked_up.batch) == (parts == [first, second])

    asyncio.run(run())
