"""What the router moves about: queries in, dispatches out.

Shared by the live server and the simulator, so nothing here knows about sockets or virtual time.
Times are seconds of one monotonic clock, whichever.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MOST_PRIORITY = 999_999_999
"""The lowest priority above none."""


class Reason(StrEnum):
    """Why the path that answered was chosen: the best one, or what kept it from being that.

    load: the best one would make others late. deadline: it takes longer than the budget. failure: a lane
    died, or lost work. probe: the query was a probe of a lane that had been slow or out.
    """

    BEST = "best"
    LOAD = "load"
    DEADLINE = "deadline"
    FAILURE = "failure"
    PROBE = "probe"
    POLICY = "policy"


DEGRADED = (Reason.LOAD, Reason.DEADLINE, Reason.FAILURE, Reason.PROBE)
"""Reasons for which a path of lower quality answers although the policy would have used the best one."""


class Refusal(StrEnum):
    """Why a query is not taken, or not answered."""

    OVERLOAD = "overload"  # the backlog says that its deadline cannot be met, or the queue is full
    EXPIRED = "expired"  # its deadline passed, or cannot be met any more
    UNAVAILABLE = "unavailable"  # no lane is alive


@dataclass(slots=True, eq=False)
class Query:
    """One request inside the server. priority: 1 is the highest, 0 is the default, the lowest.

    required: the most accurate path or none. path, reason: what its first part was dispatched with;
    all its parts run on the same representation. payload: the owner's, the router never looks at it.
    retries: batches with it that were given up; failed: one of them because its lane died or broke.
    """

    rows: int
    arrival_s: float
    deadline_s: float
    priority: int = 0
    required: bool = False
    payload: Any = None
    path: int = -1
    reason: Reason = Reason.BEST
    taken_rows: int = 0
    done_rows: int = 0
    retries: int = 0
    failed: bool = False
    settled: bool = False


@dataclass(slots=True, eq=False)
class Part:
    """Rows [first, first + rows) of a query. Never changed; one is made for each query of each batch, and a
    frozen dataclass takes three times as long to make.
    """

    query: Query
    first: int
    rows: int


@dataclass(slots=True, eq=False)
class Dispatch:
    """A batch for a lane: parts of queries, one path. median_s, tail_s: what it is expected to take.

    probe: tries out a lane that was slow or stalled on a query that stays in the queue for another lane;
    whichever answers first counts. lost: given up, its queries are queued again or out; an answer that
    comes nevertheless counts if the query has none.
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


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer at the door. retry_after_s: when the backlog should have drained that far."""

    why: Refusal
    retry_after_s: float
    queued_rows: int
