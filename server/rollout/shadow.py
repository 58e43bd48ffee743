"""Repeats requests on the canary after the stable version has answered them, to compare the answers.

The client already has its answer by then. Requests are repeated only in spare time: while no query waits for
the stable version's lanes, and at most one per INTERVAL_S, since encoding a query takes tenths of a
millisecond on the event loop. The canary's lanes are low-priority processes.
"""

from __future__ import annotations

import asyncio
from functools import partial

from polyrec.models.errors import FeatureError
from polyrec.models.schema.batch import F32
from polyrec.planner.rollout.comparison import GROUPS
from polyrec.planner.rollout.expected_loss import PairRecords
from polyrec.planner.rollout.split import Split
from polyrec.server.app.serving import Serving
from polyrec.server.clock import clock
from polyrec.server.codecs.rows import Rows
from polyrec.server.dispatch.answer import Answer, Pending
from polyrec.server.errors import Defect, Invalid, RequestError

INTERVAL_S = 0.02
BUDGET_S = 1.0


class Shadow:
    """Collects both versions' answers to the same requests.

    share: share of the stable version's requests to repeat.
    """

    def __init__(self, stable: Serving, canary: Serving, share: float) -> None:
        self.share = share
        self._stable = stable.dispatcher
        self._canary = canary.dispatcher
        self._lanes = len(canary.lanes)
        self._split = Split(share, "")
        self._next_s = 0.0
        self._closed = False
        self._records = [PairRecords() for _ in range(GROUPS)]

    def repeat(self, rows: Rows, scores: F32, group: int = 0) -> None:
        """Repeats an answered request, if it is sampled and there is spare time.

        scores: float32 [rows], the stable version's answer.
        group: the request's group (see `ArmGroup`).
        """
        if not self._split.takes_next():
            return
        now_s = clock()
        busy = self._stable.router.state.queue.pieces or self._canary.waiting >= self._lanes
        if busy or now_s < self._next_s:
            return
        self._next_s = now_s + INTERVAL_S
        asyncio.get_running_loop().call_soon(self._send, rows, scores, group)

    def take(self) -> list[PairRecords]:
        """Returns the pairs of answers collected since the last call, by group."""
        taken, self._records = self._records, [PairRecords() for _ in self._records]
        return taken

    def close(self) -> None:
        """Stops repeating requests."""
        self._closed = True

    def _send(self, rows: Rows, scores: F32, group: int) -> None:
        if self._closed:
            return
        try:
            query = self._canary.submit(rows, clock(), BUDGET_S)
        except RequestError as e:
            self._failed(e, group)
        else:
            query.payload.answer.listen(partial(self._answered, scores, group))

    def _answered(self, scores: F32, group: int, pending: Pending) -> None:
        outcome = pending.outcome
        if not isinstance(outcome, Answer):
            self._failed(outcome, group)
        elif outcome.reason is None:  # a degraded answer comes from another path, whose scores differ anyway
            self._records[group].pairs.append((scores, outcome.probabilities.copy()))

    def _failed(self, error: BaseException | None, group: int) -> None:
        """Counts an error of the canary.

        Ignores late and rejected queries, for which there was no spare time, and queries without a live lane,
        as a dead lane ends the rollout anyway.
        """
        if isinstance(error, Defect | Invalid | FeatureError) and not self._closed:
            self._records[group].failed += 1
