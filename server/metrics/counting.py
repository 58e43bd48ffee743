"""Counts requests and batches: the hot side of `server/metrics/metrics.py`.

Metric children are bound once. Answers and batches are buffered, and flushed every 32 of them or when the
metrics are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress

from polyrec.models.schema.encoder import Encoder
from polyrec.server.clock import clock
from polyrec.server.dispatch.observer import ExecutedBatch
from polyrec.server.live_quality.feature_drift import FeatureDrift
from polyrec.server.metrics.instruments import Counter, Histogram
from polyrec.server.metrics.statistics import Statistics
from polyrec.server.metrics.unknown_ids import Lookups, UnknownIdCounter, count_of, lookups_of, rows_of

OK = "ok"
"""Outcome of an answer within its budget."""
FLUSH_SIZE = 32
"""Maximum buffered answers or batches of a path. Small, since one request waits while they are counted."""


class Outcomes:
    """Requests by outcome. Counters exist from the start, histograms from the first observation."""

    def __init__(self, counters: dict[str, Counter], histogram: Callable[[str], Histogram]) -> None:
        self._counters = counters
        self._histogram = histogram
        self._bound: dict[str, Histogram] = {}

    def finished(self, outcome: str, *seconds: float) -> None:
        """Counts finished requests. seconds: the duration of each."""
        self._counters[outcome].value += len(seconds)
        histogram = self._bound.get(outcome)
        if histogram is None:
            histogram = self._bound[outcome] = self._histogram(outcome)
        histogram.observe_all(seconds)


class EndpointMetrics:
    """Counts requests of one endpoint on one path.

    rows: counters of rows answered late and in time. information: its counter, and the information of a row.
    Answers are buffered: with the protocol's statistics this takes 10 us per request if the model has evicted
    the caches; counting each answer on its own takes 17 us.
    """

    def __init__(
        self,
        outcomes: Outcomes,
        phases: Sequence[Histogram],
        rows: Sequence[Counter],
        degraded: dict[str, Counter],
        information: tuple[Counter, float],
    ) -> None:
        self.outcomes = outcomes
        self._parse, self._queue, self._serialize = phases
        self._rows = tuple(rows)
        self._degraded = degraded
        self._information, self._quality = information
        self._pending: list[tuple[bool, float, int, float, float, float, str | None]] = []

    def answered(
        self,
        in_time: bool,
        took_s: float,
        rows: int,
        parse_s: float,
        queue_s: float,
        serialize_s: float,
        reason: str | None,
    ) -> None:
        """Records an answered request. reason: why quality was degraded, None if it was not."""
        self._pending.append((in_time, took_s, rows, parse_s, queue_s, serialize_s, reason))
        if len(self._pending) >= FLUSH_SIZE:
            self.flush()

    def __del__(self) -> None:
        # the instruments of a replaced plan are dropped with answers still buffered
        self.flush()

    def flush(self) -> None:
        """Counts what is buffered."""
        if not self._pending:
            return
        in_time, took_s, rows, parse_s, queue_s, serialize_s, reasons = zip(*self._pending, strict=True)
        self._pending.clear()
        for outcome, within in ((OK, True), ("late", False)):
            if within in in_time:
                selected = [one is within for one in in_time]
                self.outcomes.finished(outcome, *compress(took_s, selected))
                counted = sum(compress(rows, selected))
                self._rows[within].value += counted
                if within:
                    self._information.value += counted * self._quality
        for reason in filter(None, reasons):
            self._degraded[reason].value += 1
        self._parse.observe_all(parse_s)
        self._queue.observe_all(queue_s)
        self._serialize.observe_all(serialize_s)


@dataclass(frozen=True, slots=True)
class LaneMetrics:
    """Instruments of one lane. alive: records that its process ended (False) or is back (True)."""

    alive: Callable[[bool], None]
    busy: Counter


_BatchRecord = tuple[float, float, float, float, int, int, Encoder | None, Lookups]


class BatchMetrics:
    """Batches of one path, buffered.

    Only the needed arrays of a batch are kept: keeping all would make the next batch use fresh memory, which
    costs more than the counting.
    """

    def __init__(
        self,
        phases: Sequence[Histogram],
        batch_rows: Histogram,
        queries: Counter,
        tier: tuple[Counter, Counter] | None,
        unknown: UnknownIdCounter,
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
        self._pending: list[_BatchRecord] = []

    def executed(self, executed: ExecutedBatch) -> None:
        """Records an executed batch."""
        lane, _, batch, queries, encode_s, embed_s, dense_s, took_s, encoder = executed
        looked_up = lookups_of(batch)
        self._pending.append((encode_s, embed_s, dense_s, took_s, queries, lane, encoder, looked_up))
        if len(self._pending) == FLUSH_SIZE:
            # later: the batch's answers have yet to be written
            asyncio.get_running_loop().call_soon(self.flush)

    def __del__(self) -> None:
        # the instruments of a replaced plan are dropped with answers still buffered
        self.flush()

    def flush(self) -> None:
        """Counts what is buffered."""
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
    """The dispatcher's observer: records batches, and deaths and restarts of lanes."""

    def __init__(
        self,
        lanes: Sequence[LaneMetrics],
        paths: Sequence[BatchMetrics],
        ticked: Callable[[float, float], None],
        drifts: Sequence[FeatureDrift],
    ) -> None:
        self._lanes = tuple(lanes)
        self._executed = [path.executed for path in paths]
        self._drifts = tuple(drifts)
        self.ticked = ticked

    def batch_executed(self, executed: ExecutedBatch) -> None:
        self._executed[executed.path](executed)
        self._drifts[executed.path].record(executed.batch, executed.encoder, clock())

    def lane_alive(self, lane: int, alive: bool) -> None:
        self._lanes[lane].alive(alive)
