"""The answer of one query, and who waits for it: what a request gets from the dispatcher, or why not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from models.batch import F32
from planner.routing.query import Query
from server.rows import Rows
from server.tracing.trace import Trace


@dataclass(frozen=True, slots=True)
class Answer:
    """The probabilities of one query, float32 [rows], and how they came about.

    path: index into the plan's paths. reason: None if nothing was reduced. queue_s is this query's wait;
    execute_s is the time of the whole batch of batch_rows (of the last one, if it was split).
    """

    probabilities: F32
    path: int
    reason: str | None
    queue_s: float
    execute_s: float
    batch_rows: int

    @property
    def reduced(self) -> bool:
        """A less accurate path than the best one answered, and not because the operator wanted it so."""
        return self.reason is not None


@dataclass(slots=True, eq=False)
class Waiting:
    """What a query carries: its rows, who waits for them, the parts that are there already, its trace.

    lost: whether rows of a batch with it in it were lost: a remote store did not give them.
    """

    rows: Rows
    answer: asyncio.Future[Answer]
    probabilities: F32 | None = None
    lost: bool = False
    trace: Trace | None = None


def fail(query: Query, error: Exception) -> None:
    """Whoever waits for the query is told; not if it has an answer already."""
    query.settled = True
    answer = query.payload.answer
    if not answer.done():
        answer.set_exception(error)
