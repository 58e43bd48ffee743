"""Data types of the router: queries go in, dispatches and rejections come out.

Shared by the live server and the simulator. Times are seconds of one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from typing import Any, NamedTuple

MOST_PRIORITY = 999_999_999
"""The lowest priority above none."""


class Reason(StrEnum):
    """Reason for the choice of a path: it is the best one, or what ruled the best one out.

    load: it would make other queries miss their deadlines. deadline: it takes longer than the budget.
    failure: a lane died or lost work. probe: the query tested a lane that had been slow or failed. policy:
    the policy does not use the best path.
    """

    BEST = "best"
    LOAD = "load"
    DEADLINE = "deadline"
    FAILURE = "failure"
    PROBE = "probe"
    POLICY = "policy"


DEGRADED = (Reason.LOAD, Reason.DEADLINE, Reason.FAILURE, Reason.PROBE)
"""Reasons with which an answer counts as degraded: the policy would have preferred the best path."""


class RejectReason(StrEnum):
    """Reason for which a query is rejected or expires. The values are labels of metrics."""

    OVERLOAD = "overload"  # the backlog makes its deadline unreachable, or the queue is full
    EXPIRED = "expired"  # its deadline passed, or can no longer be met
    UNAVAILABLE = "unavailable"  # no lane is alive


class Misses(NamedTuple):
    """The reads that a query needs before it executes: pages of the disk tier, rows of the remote store."""

    disk: int = 0
    remote: int = 0


NO_MISSES = Misses()


@dataclass(slots=True, eq=False)
class Query:
    """A request inside the server.

    priority: 1 is the highest; 0, the default, is the lowest. required: use the path of highest value or
    none. payload: the caller's; the router ignores it. path, reason: of its first dispatched part; all parts
    run on the same representation. dispatched_rows, done_rows: rows sent to lanes, and executed. retries:
    abandoned batches that contained it; failed: a lane died or failed with one of them. settled: answered,
    expired or canceled. misses: when it arrived; reading: they are still being read.
    """

    rows: int
    arrival_s: float
    deadline_s: float
    priority: int = 0
    required: bool = False
    payload: Any = None
    path: int = -1
    reason: Reason = Reason.BEST
    dispatched_rows: int = 0
    done_rows: int = 0
    retries: int = 0
    failed: bool = False
    settled: bool = False
    misses: Misses = NO_MISSES
    reading: bool = False


@dataclass(slots=True, eq=False)
class Part:
    """Rows [first, first + rows) of a query, in one batch.

    Treat as immutable. Not frozen, because a frozen dataclass takes three times as long to construct.
    """

    query: Query
    first: int
    rows: int


@dataclass(slots=True, eq=False)
class Dispatch:
    """A batch handed to a lane: parts of queries, executed on one path.

    median_s, tail_s: predicted service time. probe: a test of a lane that was slow or stalled; its query also
    stays in the queue for other lanes, and the first answer counts. lost: abandoned; its queries were queued
    again or settled, and a late answer counts only if there is no other. waits: for rows that are still
    being read.
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
        """Whole seconds for Retry-After, at least 1."""
        return max(1, ceil(self.retry_after_s))
