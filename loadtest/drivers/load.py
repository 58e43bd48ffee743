"""Defines a load: the requests of one run of the open-loop driver, and their departure times.

Arrival times, sizes and queries are drawn from seeds beforehand. Requests are built before the clock starts
if they fit in memory, because a driver that builds requests while it reads answers would be late, and blame
the server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from polyrec.loadtest.drivers.connection import LoadError, Target
from polyrec.models.schema.batch import F64, I64

BUDGET = "X-Latency-Budget-Ms"
MAX_PREPARED_BYTES = 2**30

Body = Callable[[int], bytes | None]
"""Request number -> the body of its POST, or None for a GET."""


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of one run, ready to be sent.

    due_s: float64 [requests], seconds from the start, ascending, all below `seconds`.
    rows: int64 [requests]; 1 if unknown, in which case rows/s are requests/s.
    budget_s: float64 [requests], infinite without a budget.
    payload: request number -> the bytes to send; called just before the departure.
    """

    due_s: F64
    seconds: float
    rows: I64
    budget_s: F64
    payload: Callable[[int], bytes]

    def __post_init__(self) -> None:
        if not self.due_s.shape == self.rows.shape == self.budget_s.shape:
            raise ValueError("due_s, rows and budget_s differ in length")

    def __len__(self) -> int:
        return self.due_s.size


def load_of(
    target: Target,
    due_s: F64,
    seconds: float,
    body: Body,
    *,
    rows: I64 | None = None,
    budget_s: float | F64 | None = None,
    sent_budget_s: float | F64 | None = None,
    prepare: bool = False,
) -> Load:
    """Builds a load with one body per request.

    budget_s: of all requests, or of each; sent as a header.
    sent_budget_s: budget in the header, if the client reserves part of its budget for the network.
    prepare: builds all requests now, unless they take over a gigabyte.
    Raises LoadError for a budget that is not above 0.
    """
    n = due_s.size
    limit = np.full(n, np.inf) if budget_s is None else np.broadcast_to(np.asarray(budget_s, float), n).copy()
    sent = limit if sent_budget_s is None else np.broadcast_to(np.asarray(sent_budget_s, float), n)
    if n and min(limit.min(), sent.min()) <= 0:
        raise LoadError(f"a budget of {1e3 * min(limit.min(), sent.min()):g} ms: give one above 0")
    headers = [{} if np.isinf(s) else {BUDGET: f"{1e3 * s:g}"} for s in sent.tolist()]

    def payload(index: int) -> bytes:
        return target.request(body(index), headers[index])

    sizes = np.ones(n, np.int64) if rows is None else rows
    if prepare and n and len(payload(0)) * n <= MAX_PREPARED_BYTES:
        made = [payload(i) for i in range(n)]
        return Load(due_s, seconds, sizes, limit, made.__getitem__)
    return Load(due_s, seconds, sizes, limit, payload)
