"""Data types of the router: queries, dispatches and rejections.

The live server and the simulator share them. Times are seconds on one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from typing import Any, NamedTuple

MAX_PRIORITY = 999_999_999
"""The lowest priority; only queries without priority (0) rank below it."""


class Reason(StrEnum):
    """Why a path was chosen: because it is the best one, or because something ruled the best one out.

    load: the best path would make waiting or expected queries miss their deadlines.
    deadline: the best path takes too much of the budget even on an idle server.
    failure: a lane died or lost work.
    probe: the query tested a lane that had been slow or failed.
    policy: the policy does not use the best path.
    """

    BEST = "best"
    LOAD = "load"
    DEADLINE = "deadline"
    FAILURE = "failure"
    PROBE = "probe"
    POLICY = "policy"


DEGRADED = (Reason.LOAD, Reason.DEADLINE, Reason.FAILURE, Reason.PROBE)
"""Reasons for which an answer counts as degraded, as the policy would have preferred the best path."""


class RejectReason(StrEnum):
    """Why a query is rejected or expires. The values are metric labels."""

    OVERLOAD = "overload"  # the backlog is too long for the deadline, or the queue is full
    EXPIRED = "expired"  # the deadline passed or can no longer be met
    UNAVAILABLE = "unavailable"  # no lane is alive


class Misses(NamedTuple):
    """Reads that a query needs before it executes: pages of the disk tier, rows of the remote store."""

    disk: int = 0
    remote: int = 0


NO_MISSES = Misses()


@dataclass(slots=True, eq=False)
class Query:
    """A request inside the server.

    priority: 1 is the highest; 0, the default, is the lowest.
    best_only: whether only a path of the highest value may answer.
    payload: the caller's data, which the router ignores.
    path, reason: of its first dispatched part; all parts run on the same representation.
    dispatched_rows, done_rows: rows sent to lanes, and rows executed.
    retries, failed: number of abandoned batches that contained it, and whether a lane died or failed with
        one.
    settled: whether it was answered, expired or canceled.
    recorded: the same, once the router knows; the caller answers before it reports the batch. Other batches
        of it may still be running.
    misses, reading: missing rows at arrival, and whether they are still being read.
    """

    rows: int
    arrival_s: float
    deadline_s: float
    priority: int = 0
    best_only: bool = False
    payload: Any = None
    path: int = -1
    reason: Reason = Reason.BEST
    dispatched_rows: int = 0
    done_rows: int = 0
    retries: int = 0
    failed: bool = False
    settled: bool = False
    recorded: bool = False
    misses: Misses = NO_MISSES
    reading: bool = False


@dataclass(slots=True, eq=False)
class Part:
    """Rows [first, first + rows) of a query, in one batch.

    Treat it as immutable. It is not frozen because a frozen dataclass takes three times as long to construct.
    """

    query: Query
    first: int
    rows: int


@dataclass(slots=True, eq=False)
class Dispatch:
    """A batch handed to a lane: parts of queries that execute on one path.

    median_s, tail_s: predicted service time.
    probe: whether it tests a lane that was slow or stalled. Its query also stays in the queue for other
        lanes, and the first answer wins.
    lost: whether it was abandoned. Its queries were requeued or settled, and its answer counts only if there
        is no other.
    waits: whether it waits for rows that are still being read.
    """

    lane: int
    path: int
    parts: list[Part]
    rows: int
    reason: Reason
    started_s: float
    median_s: float
    tail_s: float
    lost: bool = False
    probe: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Rejection:
    """A rejected query. retry_after_s: predicted seconds until the backlog would admit it."""

    reason: RejectReason
    retry_after_s: float
    queued_rows: int

    @property
    def retry_header_s(self) -> int:
        """Returns whole seconds for Retry-After, at least 1."""
        return max(1, ceil(self.retry_after_s))
