"""The answer of one query, and its delivery to the request that waits for it.

The HTTP and gRPC fronts create a `Pending` for each query through `Dispatcher.submit` and listen to it. The
executor settles it, and the `Outbox` then calls the listeners of a whole batch at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

from polyrec.models.schema.batch import F32
from polyrec.planner.routing.query import Query
from polyrec.server.codecs.rows import Rows
from polyrec.server.dispatch.cold_rows import LookedUpQueries
from polyrec.server.tracing.trace import Trace

log = logging.getLogger("polyrec.dispatcher")


class Answer(NamedTuple):
    """The probabilities of one query, float32 [rows], and how they were computed.

    path: index into the plan's paths.
    reason: why quality was degraded, None if it was not.
    queue_s: queue delay of this query.
    execute_s, batch_rows, lane: execution time, rows and lane of its batch (of the last one if it was split).
    encode_s: part of execute_s in which the event loop encoded the batch.
    """

    probabilities: F32
    path: int
    reason: str | None
    queue_s: float
    execute_s: float
    batch_rows: int
    lane: int
    encode_s: float = 0.0

    @property
    def degraded(self) -> bool:
        """Whether a path below the best quality answered for a reason other than the operator's choice."""
        return self.reason is not None


class Pending:
    """A future answer with a single listener or awaiter. outcome: None until it is settled.

    It costs half as much as an asyncio future, which schedules a loop handle for each callback.
    """

    __slots__ = ("_listener", "_outbox", "outcome")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.outcome: Answer | BaseException | None = None
        self._listener: Callable[[Pending], None] | None = None
        outbox.open.add(self)

    def done(self) -> bool:
        """Whether the outcome has been set."""
        return self.outcome is not None

    def settle(self, outcome: Answer | BaseException) -> None:
        """Sets the outcome; later calls are ignored."""
        if self.outcome is None:
            self.outcome = outcome
            self._outbox.put(self)

    def result(self) -> Answer:
        """Returns the answer, or raises the outcome if it is an error. Call only when `done`."""
        outcome = self.outcome
        if isinstance(outcome, Answer):
            return outcome
        assert outcome is not None
        raise outcome

    def listen(self, listener: Callable[[Pending], None]) -> None:
        """Sets the listener, which is called from the event loop once the outcome is set."""
        self._listener = listener
        if self not in self._outbox.open:
            self._outbox.put(self)

    def notify(self) -> None:
        """Calls the listener; for `Outbox` only."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener(self)

    def __await__(self) -> Generator[Any, None, Answer]:
        if not self.done():
            settled = asyncio.Event()
            self.listen(lambda _: settled.set())
            yield from settled.wait().__await__()
        return self.result()


class Outbox:
    """Delivers settled answers to their listeners, at the end of a dispatch or in the next loop iteration.

    open: answers not delivered yet, with or without an outcome.
    held: while true, settled answers only accumulate; the code that sets it must call `deliver` afterwards.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._settled: list[Pending] = []
        self.open: set[Pending] = set()
        self.held = False
        self._spent_s = 0.0
        self._delivered = 0

    def put(self, pending: Pending) -> None:
        """Adds a settled answer."""
        if not self._settled and not self.held:
            self._loop.call_soon(self.deliver)
        self._settled.append(pending)

    def deliver(self) -> None:
        """Delivers all settled answers now rather than after the event loop has read all sockets."""
        settled = self._settled
        if not settled:
            return
        began_s = time.thread_time()
        self._settled = []
        self.open.difference_update(settled)
        for pending in settled:
            try:
                pending.notify()
            except Exception:
                log.exception("an answer could not be delivered")
        self._delivered += len(settled)
        self._spent_s += time.thread_time() - began_s

    def take_spent(self) -> tuple[float, int]:
        """Returns and resets the CPU seconds spent on delivery and the number of answers delivered."""
        spent = self._spent_s, self._delivered
        self._spent_s, self._delivered = 0.0, 0
        return spent


@dataclass(slots=True, eq=False)
class QueryPayload:
    """Server data attached to a query, which the router ignores: rows, answer, parts computed so far, trace.

    lost: whether the remote store failed to return rows of a batch that the query was in.
    looked_up: the row lookup at arrival, if the path that would probably answer has rows in slow tiers; None
    once the query has an outcome.
    """

    rows: Rows
    answer: Pending
    probabilities: F32 | None = None
    lost: bool = False
    trace: Trace | None = None
    looked_up: LookedUpQueries | None = None


def settle(query: Query, outcome: Answer | Exception) -> None:
    """Sets the outcome of a query and releases its view of the tiers; later calls are ignored."""
    payload: QueryPayload = query.payload
    payload.answer.settle(outcome)
    looked_up, payload.looked_up = payload.looked_up, None
    if looked_up is not None:
        # it refers to the query too: the cycle would keep its arrays from reuse until a garbage collection
        looked_up.release_view(query)


def fail(query: Query, error: Exception) -> None:
    """Answers a query with an error, unless it already has an answer."""
    query.settled = True
    settle(query, error)
