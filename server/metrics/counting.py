"""Counting: what becomes of requests and batches in, increments of bound metrics out.

The hot side of `server/metrics/metrics.py`: children are bound once, and answers and batches are put down and
counted some at a time, before anybody reads at the latest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress

from polyrec.models.schema.encoder import Encoder
from polyrec.server.dispatch.observer import Batched
from polyrec.server.metrics.instruments import Counter, Histogram
from polyrec.server.metrics.statistics import Statistics
from polyrec.server.metrics.unknown_ids import Lookups, Unknown, count_of, lookups_of, rows_of

KEPT = "ok"
"""The outcome of an answer within its budget."""
COUNTED_AT_ONCE = 32
"""Answers, or batches, of a path. Not more: the request that waits for the counting should not notice."""


class Outcomes:
    """Requests by how they ended. A histogram that nothing fell into yet is not there; a counter is, at 0."""

    def __init__(self, counters: dict[str, Counter], histogram: Callable[[str], Histogram]) -> None:
        self._counters = counters
        self._histogram = histogram
        self._bound: dict[str, Histogram] = {}

    def finished(self, outcome: str, *seconds: float) -> None:
        """Requests that ended so. seconds: what each took."""
        self._counters[outcome].value += len(seconds)
        histogram = self._bound.get(outcome)
        if histogram is None:
            histogram = self._bound[outcome] = self._histogram(outcome)
        histogram.observe_all(seconds)


class EndpointMetrics:
    """Requests of one endpoint on one path. rows: of late answers, and of those in time.

    Answers are put down and counted some at a time, before anybody reads at the latest: counting one takes
    a third of the time when others of its kind have just been counted.
    """

    def __init__(
        self,
        outcomes: Outcomes,
        phases: Sequence[Histogram],
        rows: Sequence[Counter],
        degraded: dict[str, Counter],
    ) -> None:
        self.outcomes = outcomes
        self._parse, self._queue, self._serialise = phases
        self._rows = tuple(rows)
        self._degraded = degraded
        self._pending: list[tuple[bool, float, int, float, float, float, str | None]] = []

    def answered(
        self,
        in_time: bool,
        took_s: float,
        rows: int,
        parse_s: float,
        queue_s: float,
        serialise_s: float,
        reason: str | None,
    ) -> None:
        """A request got its answer. reason: why it was of less than the best quality, None if it was not."""
        self._pending.append((in_time, took_s, rows, parse_s, queue_s, serialise_s, reason))
        if len(self._pending) >= COUNTED_AT_ONCE:
            self.flush()

    def __del__(self) -> None:
        # a plan that was replaced goes with its last answers put down
        self.flush()

    def flush(self) -> None:
        """Counts what was put down."""
        if not self._pending:
            return
        in_time, took_s, rows, parse_s, queue_s, serialise_s, reasons = zip(*self._pending, strict=True)
        self._pending.clear()
        for outcome, kept in ((KEPT, True), ("late", False)):
            if kept in in_time:
                which = [one is kept for one in in_time]
                self.outcomes.finished(outcome, *compress(took_s, which))
                self._rows[kept].value += sum(compress(rows, which))
        for reason in filter(None, reasons):
            self._degraded[reason].value += 1
        self._parse.observe_all(parse_s)
        self._queue.observe_all(queue_s)
        self._serialise.observe_all(serialise_s)


@dataclass(frozen=True, slots=True)
class LaneMetrics:
    """One lane: how often did it die, how long did it work."""

    deaths: Counter
    busy: Counter


_Kept = tuple[float, float, float, float, int, int, Encoder | None, Lookups]


class BatchMetrics:
    """Batches of one path, counted some at a time.

    Of a batch only what is needed is kept: holding on to all of its arrays would make the next one take
    fresh memory, which costs more than the counting.
    """

    def __init__(
        self,
        phases: Sequence[Histogram],
        batch_rows: Histogram,
        queries: Counter,
        tier: tuple[Counter, Counter] | None,
        unknown: Unknown,
        lanes: Sequence[LaneMetrics],
        statistics: Statistics,
    ) -> None:
        self._encode, self._embed, self._dense = phases
        self._batch_rows = batch_rows
        self._queries = queries
        self._tier = tier
        self._unknown = unknown
        self._lanes = lanes
        self._statistics = statistics
        self._pending: list[_Kept] = []

    def executed(self, batched: Batched) -> None:
        lane, _, batch, queries, encode_s, embed_s, dense_s, took_s, encoder = batched
        looked_up = lookups_of(batch)
        self._pending.append((encode_s, embed_s, dense_s, took_s, queries, lane, encoder, looked_up))
        if len(self._pending) == COUNTED_AT_ONCE:
            # not now: the batch's answers have yet to be written
            asyncio.get_running_loop().call_soon(self.flush)

    def __del__(self) -> None:
        # a plan that was replaced goes with its last answers put down
        self.flush()

    def flush(self) -> None:
        """Counts what was put down."""
        if not self._pending:
            return
        kept = tuple(zip(*self._pending, strict=True))
        self._pending.clear()
        encode_s, embed_s, dense_s, took_s, queries, lanes, encoders, looked_up = kept
        rows = [rows_of(lookups) for lookups in looked_up]
        self._encode.observe_all(encode_s)
        self._embed.observe_all(embed_s)
        self._dense.observe_all(dense_s)
        self._batch_rows.observe_all(rows)
        self._queries.value += sum(queries)
        for lane, seconds in zip(lanes, took_s, strict=True):
            self._lanes[lane].busy.value += seconds
        self._statistics.executed(rows, took_s)
        if self._tier is not None:
            found = sum(map(count_of, looked_up))
            for counter in self._tier:
                counter.inc(found)
        self._unknown.count(encoders, looked_up)


class Recorder:
    """Tells the dispatcher's batches and lanes to the metrics and to the protocol's statistics."""

    def __init__(
        self,
        lanes: Sequence[LaneMetrics],
        paths: Sequence[BatchMetrics],
        ticked: Callable[[float, float], None],
    ) -> None:
        self._lanes = tuple(lanes)
        self._executed = [path.executed for path in paths]
        self.ticked = ticked

    def batch_executed(self, batched: Batched) -> None:
        self._executed[batched.path](batched)

    def lane_alive(self, lane: int, alive: bool) -> None:
        if not alive:
            self._lanes[lane].deaths.inc()
