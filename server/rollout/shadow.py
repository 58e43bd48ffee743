"""Gives requests that the stable version has answered to the canary as well, to compare the answers.

The client has its answer before. It is done in spare time only: while no query waits for the stable version's
lanes, and at most every INTERVAL_S, since a query takes the event loop tenths of a millisecond to encode. The
canary's lanes are processes of low priority.
"""

from __future__ import annotations

import asyncio
from functools import partial

from polyrec.models.errors import FeatureError
from polyrec.models.schema.batch import F32
from polyrec.planner.rollout.expected_loss import PairRecords
from polyrec.planner.rollout.split import Split
from polyrec.server.app.serving import Serving
from polyrec.server.codecs.rows import Rows
from polyrec.server.dispatch.answer import Answer, Pending
from polyrec.server.dispatch.dispatcher import clock
from polyrec.server.errors import Defect, Invalid, NotReady, RequestError

INTERVAL_S = 0.02
BUDGET_S = 1.0


class Shadow:
    """Compares answers to the same requests. share: of the stable version's requests, if there is time."""

    def __init__(self, stable: Serving, canary: Serving, share: float) -> None:
        self.share = share
        self._stable = stable.dispatcher
        self._canary = canary.dispatcher
        self._lanes = len(canary.lanes)
        self._split = Split(share, "")
        self._next_s = 0.0
        self._closed = False
        self._records = PairRecords()

    def offer(self, rows: Rows, scores: F32) -> None:
        """Takes a request whose answer is written, or leaves it. scores: of the answer, float32 [rows]."""
        if not self._split.takes_next():
            return
        now_s = clock()
        busy = self._stable.router.state.queue.pieces or self._canary.waiting >= self._lanes
        if busy or now_s < self._next_s:
            return
        self._next_s = now_s + INTERVAL_S
        asyncio.get_running_loop().call_soon(self._send, rows, scores)

    def take(self) -> PairRecords:
        """Returns what was compared since the last call."""
        taken, self._records = self._records, PairRecords()
        return taken

    def close(self) -> None:
        """Sends nothing from now on."""
        self._closed = True

    def _send(self, rows: Rows, scores: F32) -> None:
        if self._closed:
            return
        try:
            query = self._canary.submit(rows, clock(), BUDGET_S)
        except RequestError as e:
            self._failed(e)
        else:
            query.payload.answer.listen(partial(self._answered, scores))

    def _answered(self, scores: F32, pending: Pending) -> None:
        outcome = pending.outcome
        if not isinstance(outcome, Answer):
            self._failed(outcome)
        elif outcome.reason is None:  # another path than the best would be another comparison
            self._records.pairs.append((scores, outcome.probabilities.copy()))

    def _failed(self, error: BaseException | None) -> None:
        """Counts what is the canary's fault; to be too late or rejected means that there was no time."""
        if isinstance(error, Defect | NotReady | Invalid | FeatureError) and not self._closed:
            self._records.failed += 1
