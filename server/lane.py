"""The lane: one executor of one runtime, with its queue.

Queries go in, each with its rows and deadline; each gets its own answer back. Queries that wait at
the same time are encoded and executed as one batch, first come first served, up to `max_batch_rows`.
The queue is bounded in rows: beyond it a query is refused at once, with the time after which it should
fit.

All state belongs to the event loop. Where a batch executes is the driver's affair (`server/driver.py`),
so the order of work is decided in one place, `Lane._take`: deadline order and priorities belong there.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from models.batch import F32, Batch
from models.encoder import Encoder
from models.errors import FeatureError
from models.runtimes.runtime import Runtime
from planner.plan import Limits
from server.driver import Driver
from server.errors import DeadlinePassed, Defect, Invalid, Overloaded
from server.rows import Rows, encode

log = logging.getLogger("polyrec.lane")

clock = time.perf_counter
FIRST_GUESS_ROW_S = 1e-5
SMOOTHING = 0.1


@dataclass(frozen=True, slots=True)
class Answer:
    """The probabilities of one query, float32 [rows], and how they came about.

    queue_s is this query's wait; execute_s is the time of the whole batch of batch_rows.
    """

    probabilities: F32
    queue_s: float
    execute_s: float
    batch_rows: int


@dataclass(slots=True, eq=False)
class Query:
    """One request inside the server. Times are of `clock`, in seconds; priority 1 is the highest."""

    rows: Rows
    arrival_s: float
    deadline_s: float
    answer: asyncio.Future[Answer]
    priority: int = 0
    queued_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Executed:
    """One executed batch, and the time each stage took."""

    batch: Batch
    probabilities: F32
    encode_s: float
    embed_s: float
    dense_s: float

    @property
    def took_s(self) -> float:
        return self.encode_s + self.embed_s + self.dense_s


Outcome = tuple[Sequence[Query], Executed | Exception]


class Observer(Protocol):
    """Who is told about every batch that was executed."""

    def batch_executed(self, executed: Executed, queries: int) -> None: ...


class Lane:
    """Executes queries of one path. Used from one event loop only."""

    def __init__(
        self, encoder: Encoder, runtime: Runtime, limits: Limits, driver: Driver, observer: Observer
    ) -> None:
        self._encoder = encoder
        self._runtime = runtime
        self._limits = limits
        self._driver = driver
        self._observer = observer
        self._queue: deque[Query] = deque()
        self._awake = False
        self._row_s = FIRST_GUESS_ROW_S
        self.queued_rows = 0

    def ask(self, rows: Rows, arrival_s: float, budget_s: float, priority: int = 0) -> asyncio.Future[Answer]:
        """Queues a query. The future raises DeadlinePassed, FeatureError, Invalid or Defect.

        Raises Overloaded at once if the queue is full.
        """
        waiting = self.queued_rows
        if waiting and waiting + rows.rows > self._limits.max_queued_rows:
            raise Overloaded(waiting, max(1, math.ceil(waiting * self._row_s)))
        loop = asyncio.get_running_loop()
        query = Query(rows, arrival_s, arrival_s + budget_s, loop.create_future(), priority, clock())
        self._queue.append(query)
        self.queued_rows = waiting + rows.rows
        if not self._awake:
            self._awake = True
            loop.call_soon(self._next_turn)
        return query.answer

    def close(self) -> None:
        """Ends the driver. Queries still waiting are cancelled."""
        for query in self._queue:
            query.answer.cancel()
        self._queue.clear()
        self.queued_rows = 0
        self._driver.close()

    def _next_turn(self) -> None:
        # Two turns of the loop, not one: whatever has reached the sockets by now is read in the first
        # and parsed in the second, and joins the batch. That is worth a quarter more throughput at 16
        # connections, and nothing is waited for: an idle loop turns at once.
        asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        queries = self._take(clock())
        if queries:
            self._driver.run(lambda: self._execute(queries), self._settle)
        else:
            self._go_on()

    def _go_on(self) -> None:
        if self._queue:
            asyncio.get_running_loop().call_soon(self._next_turn)
        else:
            self._awake = False

    def _take(self, now_s: float) -> list[Query]:
        """The next queries to execute together; those whose time has passed are answered here."""
        taken: list[Query] = []
        rows = 0
        while self._queue:
            query = self._queue[0]
            size = query.rows.rows
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

    def _execute(self, queries: Sequence[Query]) -> list[Outcome]:
        """Runs off the loop if the driver wants so; touches nothing but encoder and runtime.

        All queries together; a query that breaks the batch takes nobody with it.
        """
        try:
            return [(queries, self._predict([q.rows for q in queries]))]
        except Exception as e:
            if len(queries) == 1:
                return [(queries, e)]
        outcomes: list[Outcome] = []
        sound: list[Query] = []
        for query in queries:
            try:
                query.rows.encode(self._encoder)
            except Exception as e:
                outcomes.append(((query,), e))
            else:
                sound.append(query)
        if outcomes:
            return outcomes + self._execute(sound) if sound else outcomes
        return [outcome for query in queries for outcome in self._execute((query,))]

    def _predict(self, rows: Sequence[Rows]) -> Executed:
        start = clock()
        batch = encode(rows, self._encoder)
        encoded = clock()
        embedded = self._runtime.embed(batch)
        middle = clock()
        probabilities = self._runtime.dense(embedded)
        return Executed(batch, probabilities, encoded - start, middle - encoded, clock() - middle)

    def _settle(self, outcomes: Sequence[Outcome]) -> None:
        """Back on the loop: scatters what was executed over the queries, and goes on."""
        try:
            for queries, result in outcomes:
                self._scatter(queries, result)
        finally:
            self._go_on()

    def _scatter(self, queries: Sequence[Query], result: Executed | Exception) -> None:
        if isinstance(result, Exception):
            if not isinstance(result, FeatureError):
                log.error("a batch of %d queries failed", len(queries), exc_info=result)
                result = Defect("the prediction failed; the server's log has the details")
            for query in queries:
                _fail(query, result)
            return
        probabilities = result.probabilities
        rows = probabilities.size
        took_s = result.took_s
        self._row_s += SMOOTHING * (took_s / rows - self._row_s)
        started = clock() - took_s
        finite = math.isfinite(float(probabilities.sum()))
        first = 0
        for query in queries:
            own = probabilities[first : first + query.rows.rows]
            first += query.rows.rows
            if query.answer.done():
                continue
            if not finite and not math.isfinite(float(own.sum())):
                _fail(
                    query, Invalid("the features give no finite probability; a dense value is far too large")
                )
                continue
            query.answer.set_result(Answer(own, max(0.0, started - query.queued_s), took_s, rows))
        self._observer.batch_executed(result, len(queries))


def _fail(query: Query, error: Exception) -> None:
    if not query.answer.done():
        query.answer.set_exception(error)
