"""Counting: what becomes of requests and batches in, increments of bound metrics out.

The hot side of `server/metrics.py`: children are bound once, and answers and batches are put down and
counted some at a time, before anybody reads at the latest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from server.instruments import Counter, Histogram
from server.observer import Batched
from server.statistics import Statistics
from server.unknown import Unknown

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

    def finished(self, outcome: str, seconds: float) -> None:
        self._counters[outcome].value += 1
        histogram = self._bound.get(outcome)
        if histogram is None:
            histogram = self._bound[outcome] = self._histogram(outcome)
        histogram.observe(seconds)


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
        reduced: dict[str, Counter],
    ) -> None:
        self.outcomes = outcomes
        self._parse, self._queue, self._serialise = phases
        self._rows = tuple(rows)
        self._reduced = reduced
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
        for in_time, took_s, rows, parse_s, queue_s, serialise_s, reason in self._pending:
            self.outcomes.finished(KEPT if in_time else "late", took_s)
            self._rows[in_time].value += rows
            if reason is not None:
                self._reduced[reason].value += 1
            self._parse.observe(parse_s)
            self._queue.observe(queue_s)
            self._serialise.observe(serialise_s)
        self._pending.clear()


class BatchMetrics:
    """Batches of one path, counted some at a time."""

    def __init__(
        self,
        phases: Sequence[Histogram],
        batch_rows: Histogram,
        queries: Counter,
        tier: tuple[Counter, Counter] | None,
        unknown: Unknown,
    ) -> None:
        self._encode, self._embed, self._dense = phases
        self._batch_rows = batch_rows
        self._queries = queries
        self._tier = tier
        self._unknown = unknown
        self._pending: list[tuple[float, float, float, int, int, int]] = []

    def executed(self, batched: Batched) -> None:
        batch = batched.batch
        context, candidate = batch.context, batch.candidate
        found = context.ranks.size + context.bag_values.size
        found += candidate.ranks.size + candidate.bag_values.size
        self._pending.append(
            (batched.encode_s, batched.embed_s, batched.dense_s, batch.rows, batched.queries, found)
        )
        if batched.encoder is not None:
            self._unknown.follow(batched.encoder)
        self._unknown.add(batch)
        if len(self._pending) >= COUNTED_AT_ONCE:
            self.flush()

    def __del__(self) -> None:
        # a plan that was replaced goes with its last answers put down
        self.flush()

    def flush(self) -> None:
        """Counts what was put down."""
        looked_up = 0
        for encode_s, embed_s, dense_s, rows, queries, found in self._pending:
            self._encode.observe(encode_s)
            self._embed.observe(embed_s)
            self._dense.observe(dense_s)
            self._batch_rows.observe(rows)
            self._queries.value += queries
            looked_up += found
        if self._tier is not None:
            for counter in self._tier:
                counter.inc(looked_up)
        self._unknown.flush()
        self._pending.clear()


@dataclass(frozen=True, slots=True)
class LaneMetrics:
    """One lane: how often did it die, how long did it work."""

    deaths: Counter
    busy: Counter


class Recorder:
    """Tells the dispatcher's batches and lanes to the metrics and to the protocol's statistics."""

    def __init__(
        self,
        lanes: Sequence[LaneMetrics],
        paths: Sequence[BatchMetrics],
        statistics: Statistics,
        ticked: Callable[[float, float], None],
    ) -> None:
        self._lanes = tuple(lanes)
        self._paths = tuple(paths)
        self._statistics = statistics
        self.ticked = ticked

    def batch_executed(self, batched: Batched) -> None:
        self._paths[batched.path].executed(batched)
        self._lanes[batched.lane].busy.inc(batched.took_s)
        self._statistics.executed(batched.batch.rows, batched.took_s)

    def lane_alive(self, lane: int, alive: bool) -> None:
        if not alive:
            self._lanes[lane].deaths.inc()
