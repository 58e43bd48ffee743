"""The lane: one executor of one runtime, with its queue.

Queries go in, each with its rows and deadline; each gets its own answer back. Queries that wait at
the same time are executed as one batch, first come first served, up to `max_batch_rows`. The queue
is bounded in rows: beyond it a query is refused at once, with the time after which it should fit.

All state belongs to the event loop. Where a batch executes is the driver's affair (`server/driver.py`),
so the order of work is decided in one place, `Lane._take`: deadline order and priorities belong there.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from models.batch import F32, Batch
from models.runtimes.runtime import Runtime
from planner.plan import Limits
from server.driver import Driver
from server.errors import DeadlinePassed, Defect, Invalid, Overloaded

log = logging.getLogger("polyrec.lane")

clock = time.perf_counter
FIRST_GUESS_ROW_S = 1e-5
SMOOTHING = 0.1


@dataclass(frozen=True, slots=True)
class Answer:
    """The probabilities of one query, float32 [rows], and how they came about.

    queue_s is this query's wait; embed_s and dense_s are those of the whole batch of batch_rows.
    """

    probabilities: F32
    queue_s: float
    embed_s: float
    dense_s: float
    batch_rows: int


@dataclass(slots=True, eq=False)
class Query:
    """One request inside the server. Times are of `clock`, in seconds; priority 1 is the highest."""

    batch: Batch
    arrival_s: float
    deadline_s: float
    answer: asyncio.Future[Answer]
    priority: int = 0
    queued_s: float = 0.0


class Observer(Protocol):
    """Who is told about every batch that was executed."""

    def batch_executed(self, batch: Batch, queries: int, embed_s: float, dense_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class _Done:
    """One executed batch: its probabilities and the time of its two stages."""

    batch: Batch
    probabilities: F32
    embed_s: float
    dense_s: float


class Lane:
    """Executes queries of one path. Used from one event loop only."""

    def __init__(self, runtime: Runtime, limits: Limits, driver: Driver, observer: Observer) -> None:
        self._runtime = runtime
        self._limits = limits
        self._driver = driver
        self._observer = observer
        self._queue: deque[Query] = deque()
        self._awake = False
        self._row_s = FIRST_GUESS_ROW_S
        self.queued_rows = 0

    def ask(
        self, batch: Batch, arrival_s: float, budget_s: float, priority: int = 0
    ) -> asyncio.Future[Answer]:
        """Queues a query. The future raises DeadlinePassed, Invalid or Defect.

        Raises Overloaded at once if the queue is full.
        """
        waiting = self.queued_rows
        if waiting and waiting + batch.rows > self._limits.max_queued_rows:
            raise Overloaded(waiting, max(1, math.ceil(waiting * self._row_s)))
        loop = asyncio.get_running_loop()
        query = Query(batch, arrival_s, arrival_s + budget_s, loop.create_future(), priority, clock())
        self._queue.append(query)
        self.queued_rows = waiting + batch.rows
        if not self._awake:
            # Not at once: whatever else this turn of the loop has received joins the batch.
            self._awake = True
            loop.call_soon(self._dispatch)
        return query.answer

    def close(self) -> None:
        """Ends the driver. Queries still waiting are cancelled."""
        for query in self._queue:
            query.answer.cancel()
        self._queue.clear()
        self.queued_rows = 0
        self._driver.close()

    def _dispatch(self) -> None:
        queries = self._take(clock())
        if queries:
            self._driver.run(lambda: self._execute(queries), lambda done: self._settle(queries, done))
        elif self._queue:
            asyncio.get_running_loop().call_soon(self._dispatch)
        else:
            self._awake = False

    def _take(self, now_s: float) -> list[Query]:
        """The next queries to execute together; those whose time has passed are answered here."""
        taken: list[Query] = []
        rows = 0
        while self._queue:
            query = self._queue[0]
            size = query.batch.rows
            if taken and rows + size > self._limits.max_batch_rows:
                break
            self._queue.popleft()
            self.queued_rows -= size
            if query.answer.done():
                continue  # the client's request was cancelled while it waited
            if query.deadline_s <= now_s:
                query.answer.set_exception(DeadlinePassed(query.deadline_s - query.arrival_s))
                continue
            taken.append(query)
            rows += size
        return taken

    def _execute(self, queries: Sequence[Query]) -> list[_Done | Exception]:
        """Runs off the loop if the driver wants so; touches nothing but the runtime.

        One result for all queries together, or, if that failed, one for each of them alone: a query
        that breaks the batch takes nobody with it.
        """
        try:
            return [self._predict(Batch.concat([q.batch for q in queries]))]
        except Exception as e:
            log.exception("a batch of %d queries failed", len(queries))
            if len(queries) == 1:
                return [e]
        alone: list[_Done | Exception] = []
        for query in queries:
            try:
                alone.append(self._predict(query.batch))
            except Exception as e:
                alone.append(e)
        return alone

    def _predict(self, batch: Batch) -> _Done:
        start = clock()
        embedded = self._runtime.embed(batch)
        middle = clock()
        probabilities = self._runtime.dense(embedded)
        return _Done(batch, probabilities, middle - start, clock() - middle)

    def _settle(self, queries: Sequence[Query], results: Sequence[_Done | Exception]) -> None:
        """Back on the loop: scatters what was executed over the queries, and goes on."""
        if len(results) == 1:
            self._scatter(queries, results[0])
        else:
            for query, result in zip(queries, results, strict=True):
                self._scatter((query,), result)
        if self._queue:
            asyncio.get_running_loop().call_soon(self._dispatch)
        else:
            self._awake = False

    def _scatter(self, queries: Sequence[Query], result: _Done | Exception) -> None:
        if isinstance(result, Exception):
            for query in queries:
                _fail(query, Defect("the prediction failed; the server's log has the details"))
            return
        rows = result.probabilities.size
        executed_s = result.embed_s + result.dense_s
        self._row_s += SMOOTHING * (executed_s / rows - self._row_s)
        started = clock() - executed_s
        finite = math.isfinite(float(result.probabilities.sum()))
        first = 0
        for query in queries:
            own = result.probabilities[first : first + query.batch.rows]
            first += query.batch.rows
            if query.answer.done():
                continue
            if not finite and not math.isfinite(float(own.sum())):
                _fail(
                    query, Invalid("the features give no finite probability; a dense value is far too large")
                )
                continue
            wait_s = max(0.0, started - query.queued_s)
            query.answer.set_result(Answer(own, wait_s, result.embed_s, result.dense_s, rows))
        self._observer.batch_executed(result.batch, len(queries), result.embed_s, result.dense_s)


def _fail(query: Query, error: Exception) -> None:
    if not query.answer.done():
        query.answer.set_exception(error)


Job = Callable[[], list[_Done | Exception]]
