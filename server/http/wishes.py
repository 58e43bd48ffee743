"""What a client may wish of a prediction, in headers: its latency budget, its priority, its quality."""

from __future__ import annotations

import math
from typing import NamedTuple

from planner.plan import MOST_BUDGET_MS
from server.errors import Malformed
from server.http.body import Headers

BUDGET = b"x-latency-budget-ms"
PRIORITY = b"x-polyrec-priority"
QUALITY = b"x-polyrec-quality"
MOST_BUDGET_S = MOST_BUDGET_MS / 1e3


class Wishes(NamedTuple):
    """None: the headers do not say."""

    budget_s: float | None = None
    priority: int | None = None
    required: bool | None = None


def wishes_of(headers: Headers) -> Wishes:
    """The last word counts. Raises Malformed."""
    budget_s, priority, required = None, None, None
    for name, value in headers:
        if name == BUDGET:
            budget_s = latency_budget_s(value)
        elif name == PRIORITY:
            priority = priority_of(value)
        elif name == QUALITY:
            required = quality_is_required(value)
    return Wishes(budget_s, priority, required)


def latency_budget_s(value: bytes, where: str = "header X-Latency-Budget-Ms") -> float:
    """Milliseconds as text -> seconds. Raises Malformed."""
    try:
        budget_s = float(value) / 1e3
    except ValueError:
        budget_s = math.nan
    if not 0 < budget_s <= MOST_BUDGET_S:
        text = value[:40].decode("latin-1")
        raise Malformed(
            f"{where} is '{text}'; it is a number of milliseconds above 0, {MOST_BUDGET_MS} (an hour) at most"
        )
    return budget_s


def priority_of(value: bytes) -> int:
    """X-Polyrec-Priority: 1 is the highest, 0 the default and lowest. Raises Malformed."""
    if not value.isdigit() or len(value) > 9:
        text = value[:40].decode("latin-1")
        raise Malformed(
            f"header X-Polyrec-Priority is '{text}'; it is 0 (the default, lowest), 1 (highest) or more"
        )
    return int(value)


def quality_is_required(value: bytes, where: str = "header X-Polyrec-Quality") -> bool:
    """`required` or `any`. Raises Malformed."""
    if value not in (b"required", b"any"):
        text = value[:40].decode("latin-1")
        raise Malformed(f"{where} is '{text}'; it is 'required' or 'any'")
    return value == b"required"
