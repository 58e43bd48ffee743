"""Repeats requests on the canary after the stable version has answered them, to compare the answers.

The client already has its answer by then. `ComparisonPace` chooses the requests: a share in spare time, that
is while no query waits for the stable version's lanes, and a few a second whatever the load. Only answers of
best quality are compared, since other paths differ anyway; a request that the stable version answered with a
degraded one is first repeated there too. Repeated requests wait long, behind those of clients.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from random import Random

from polyrec.models.errors import FeatureError
from polyrec.models.schema.batch import F32
from polyrec.planner.rollout.comparison import GROUPS
from polyrec.planner.rollout.expected_loss import PairRecords
from polyrec.planner.rollout.pace import ComparisonPace
from polyrec.planner.routing.query import Query
from polyrec.server.app.serving import Serving
from polyrec.server.clock import clock
from polyrec.server.codecs.rows import Rows
from polyrec.server.dispatch.answer import Answer, Pending
from polyrec.server.dispatch.dispatcher import Dispatcher
from polyrec.server.errors import Defect, Invalid, NotReady, RequestError

BUDGET_S = 10.0
"""Time for each version's answer: the canary's lanes may wait seconds for a processor."""
OPEN_PER_LANE = 8
"""Maximum unfinished comparisons per lane of the canary, as all may be encoded at once for one batch."""
QUEUE_SHARE = 0.1
"""Maximum share of the stable version's queue for requests that it is asked again.

Past capacity they wait there for seconds, behind clients' requests. In a queue made to drain within the SLO,
eight of them would leave clients, who then get 429, half of the room. One larger request may be there alone.
"""


@dataclass(slots=True, eq=False)
class _Comparison:
    """A request to be answered by both versions. scores: the stable version's; None if it is asked again."""

    rows: Rows
    group: int
    is_guaranteed: bool
    scores: F32 | None
    at: Dispatcher | None = None
    query: Query | None = None


class Shadow:
    """Collects both versions' answers to the same requests. share, per_s: see `ComparisonPace`."""

    def __init__(self, stable: Serving, canary: Serving, share: float, per_s: float) -> None:
        self.share = share
        self.per_s = per_s
        self._stable = stable.dispatcher
        self._canary = canary.dispatcher
        self._lanes = len(canary.lanes)
        self._pace = ComparisonPace(share, per_s, Random())
        self._closed = False
        self._open: set[_Comparison] = set()
        self._records = [PairRecords() for _ in range(GROUPS)]

    def repeat(self, rows: Rows, answer: Answer, scores: F32, group: int = 0) -> None:
        """Repeats an answered request if it is chosen.

        answer, scores: the stable version's answer and a copy of its probabilities, float32 [rows].
        group: the request's group (see `ArmGroup`).
        """
        if self.open >= OPEN_PER_LANE * self._lanes or (answer.degraded and not self._fits(rows.rows)):
            return
        has_spare_time = not (
            answer.degraded or self._stable.router.state.queue.pieces or self._canary.waiting >= self._lanes
        )
        is_guaranteed = self._pace.take(clock(), has_spare_time)
        if is_guaranteed is None:
            return
        comparison = _Comparison(rows, group, is_guaranteed, None if answer.degraded else scores)
        self._open.add(comparison)
        asyncio.get_running_loop().call_soon(self._ask, comparison)

    def _fits(self, rows: int) -> bool:
        """Whether the stable version's queue has room for a request that it is asked again."""
        waiting = sum(each.rows.rows for each in self._open if each.scores is None)
        return not waiting or waiting + rows <= QUEUE_SHARE * self._stable.router.state.limits.max_queued_rows

    @property
    def open(self) -> int:
        """Number of comparisons that have not ended."""
        return len(self._open)

    def take(self) -> list[PairRecords]:
        """Returns the pairs of answers collected since the last call, by group."""
        taken, self._records = self._records, [PairRecords() for _ in self._records]
        return taken

    def close(self) -> None:
        """Stops repeating requests, and cancels those that wait."""
        self._closed = True
        for comparison in tuple(self._open):
            self._open.discard(comparison)
            if comparison.at is not None and comparison.query is not None:
                comparison.at.cancel(comparison.query, NotReady("the rollout has ended"))

    def _ask(self, comparison: _Comparison) -> None:
        """Queues the request at the canary, or first at the stable version if its scores are missing."""
        if self._closed:
            return
        is_stable = comparison.scores is None
        comparison.at = self._stable if is_stable else self._canary
        began_s = time.thread_time()
        try:
            query = comparison.at.submit(comparison.rows, clock(), BUDGET_S, best_only=True)
        except RequestError as e:
            self._failed(comparison, e)
            return
        self._spent(comparison, time.thread_time() - began_s)
        comparison.query = query
        query.payload.answer.listen(lambda pending: self._answered(comparison, pending))

    def _answered(self, comparison: _Comparison, pending: Pending) -> None:
        outcome = pending.outcome
        if self._closed:
            return
        if not isinstance(outcome, Answer):
            self._failed(comparison, outcome)
            return
        is_stable = comparison.scores is None
        took_s = outcome.execute_s if is_stable else outcome.encode_s
        self._spent(comparison, took_s * comparison.rows.rows / outcome.batch_rows)
        if outcome.degraded:
            self._failed(comparison, None)
        elif is_stable:
            comparison.scores = outcome.probabilities.copy()
            self._ask(comparison)
        else:
            self._open.discard(comparison)
            assert comparison.scores is not None
            pair = comparison.scores, outcome.probabilities.copy()
            self._records[comparison.group].pairs.append(pair)

    def _failed(self, comparison: _Comparison, error: BaseException | None) -> None:
        """Counts a comparison that ended without two answers.

        Only an error of the canary counts against it. Late and rejected queries, for which there was no time,
        do not, nor do queries without a live lane, as a dead lane ends the rollout anyway.
        """
        self._open.discard(comparison)
        is_canarys = comparison.at is self._canary and isinstance(error, Defect | Invalid | FeatureError)
        records = self._records[comparison.group]
        records.failed += is_canarys
        records.missed += not is_canarys

    def _spent(self, comparison: _Comparison, seconds: float) -> None:
        self._records[comparison.group].spent_s += seconds
        if comparison.is_guaranteed:
            self._pace.spend(clock(), seconds)
