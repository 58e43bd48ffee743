"""The answer of one query, and who waits for it: what a request gets from the dispatcher, or why not."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from polyrec.models.schema.batch import F32
from polyrec.planner.routing.query import Query
from polyrec.server.codecs.rows import Rows
from polyrec.server.tracing.trace import Trace

log = logging.getLogger("polyrec.dispatcher")


@dataclass(frozen=True, slots=True)
class Answer:
    """The probabilities of one query, float32 [rows], and how they came about.

    path: index into the plan's paths. reason: None if nothing was degraded. queue_s is this query's wait;
    execute_s is the time of the whole batch of batch_rows (of the last one, if it was split).
    """

    probabilities: F32
    path: int
    reason: str | None
    queue_s: float
    execute_s: float
    batch_rows: int

    @property
    def degraded(self) -> bool:
        """A less accurate path than the best one answered, and not because the operator wanted it so."""
        return self.reason is not None


class Pending:
    """An answer that is to come: told to one listener, or to whoever awaits it. outcome: None until then.

    A future would do, at twice the cost: it schedules a handle of the loop for each of its callbacks.
    """

    __slots__ = ("_listener", "_outbox", "outcome")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.outcome: Answer | BaseException | None = None
        self._listener: Callable[[Pending], None] | None = None
        outbox.open.add(self)

    def done(self) -> bool:
        """Whether it is known what it is."""
        return self.outcome is not None

    def settle(self, outcome: Answer | BaseException) -> None:
        """Now it is known; the first word counts."""
        if self.outcome is None:
            self.outcome = outcome
            self._outbox.put(self)

    def result(self) -> Answer:
        """What it is, once it is known. Raises what kept it from coming."""
        outcome = self.outcome
        if isinstance(outcome, Answer):
            return outcome
        assert outcome is not None
        raise outcome

    def listen(self, listener: Callable[[Pending], None]) -> None:
        """Once it is known it is told to this one, by the loop."""
        self._listener = listener
        if self not in self._outbox.open:
            self._outbox.put(self)

    def tell(self) -> None:
        """The outbox's."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener(self)

    def __await__(self) -> Generator[Any, None, Answer]:
        if not self.done():
            known = asyncio.Event()
            self.listen(lambda _: known.set())
            yield from known.wait().__await__()
        return self.result()


class Outbox:
    """Answers on their way, told one after another: by the turn that settles them, or else by the loop.

    open: those that have not been told.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._settled: list[Pending] = []
        self.open: set[Pending] = set()
        self._spent_s = 0.0
        self._told = 0

    def put(self, pending: Pending) -> None:
        """It is settled."""
        if not self._settled:
            self._loop.call_soon(self.deliver)
        self._settled.append(pending)

    def deliver(self) -> None:
        """Tells all that is settled. What the loop would do after it has read all that came meanwhile."""
        settled = self._settled
        if not settled:
            return
        began_s = time.thread_time()
        self._settled = []
        self.open.difference_update(settled)
        for pending in settled:
            try:
                pending.tell()
            except Exception:
                log.exception("an answer could not be told")
        self._told += len(settled)
        self._spent_s += time.thread_time() - began_s

    def spent(self) -> tuple[float, int]:
        """Processor seconds of telling since it was asked last, and how many were told."""
        spent = self._spent_s, self._told
        self._spent_s, self._told = 0.0, 0
        return spent


@dataclass(slots=True, eq=False)
class Waiting:
    """What a query carries: its rows, who waits for them, the parts that are there already, its trace.

    lost: whether rows of a batch with it in it were lost: a remote store did not give them.
    """

    rows: Rows
    answer: Pending
    probabilities: F32 | None = None
    lost: bool = False
    trace: Trace | None = None


def fail(query: Query, error: Exception) -> None:
    """Whoever waits for the query is told; not if it has an answer already."""
    query.settled = True
    query.payload.answer.settle(error)
