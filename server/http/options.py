"""Parses and limits per-request options: latency budget, priority and required quality.

Options come from headers or from a body. In either case `RequestOptions.allowed` caps the budget to the
operator's maximum and checks the client's rights.
"""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

from polyrec.planner.plan import MAX_BUDGET_MS
from polyrec.planner.routing.query import MAX_PRIORITY
from polyrec.server.access.tokens import Client, Right
from polyrec.server.errors import Forbidden, Malformed
from polyrec.server.http.connection.body import Headers

BUDGET = b"x-latency-budget-ms"
PRIORITY = b"x-polyrec-priority"
QUALITY = b"x-polyrec-quality"
MIN_BUDGET_S = sys.float_info.min
"""Minimum budget. Dividing a smaller one may give 0, which would mean that there is no budget."""


class RequestOptions(NamedTuple):
    """Options of one request. None means not specified.

    budget_s: latency budget in seconds.
    priority: 1 is the highest, 0 the default and lowest.
    best_only: whether only a path of the best quality may answer.
    """

    budget_s: float | None = None
    priority: int | None = None
    best_only: bool | None = None

    def over(self, other: RequestOptions) -> RequestOptions:
        """Returns these options, completed from `other` where not specified."""
        return RequestOptions(
            other.budget_s if self.budget_s is None else self.budget_s,
            other.priority if self.priority is None else self.priority,
            other.best_only if self.best_only is None else self.best_only,
        )

    def allowed(self, client: Client, max_budget_s: float) -> RequestOptions:
        """Returns these options with the budget capped. Raises Forbidden if the client lacks a right."""
        budget_s, priority, best_only = self
        if priority and "priority" not in client.rights:
            raise _forbidden("priority", str(priority), "header X-Polyrec-Priority, parameter 'priority'")
        if best_only and "quality" not in client.rights:
            raise _forbidden("quality", "'required'", "header X-Polyrec-Quality, parameter 'quality'")
        if budget_s is not None and budget_s > max_budget_s:
            return RequestOptions(max_budget_s, priority, best_only)
        return self


NO_OPTIONS = RequestOptions()


def _forbidden(right: Right, value: str, where: str) -> Forbidden:
    return Forbidden(
        f"{right} {value} ({where}) needs a token with the right '{right}'; leave it out, or ask the "
        f"operator for such a token (--tokens) or to open it to all (--open-rights {right})"
    )


def parse_options(headers: Headers) -> RequestOptions:
    """Parses the options in headers with lower-case names; the last of equal names wins.

    Returns NO_OPTIONS itself if there are none. Raises Malformed.
    """
    budget_s: float | None = None
    priority: int | None = None
    best_only: bool | None = None
    for name, value in headers:
        if name == BUDGET:
            budget_s = parse_budget_s(value)
        elif name == PRIORITY:
            priority = parse_priority(value)
        elif name == QUALITY:
            best_only = parse_quality(value)
    # callers compare with `is NO_OPTIONS` to skip checks
    has_options = budget_s is not None or priority is not None or best_only is not None
    return RequestOptions(budget_s, priority, best_only) if has_options else NO_OPTIONS


def parse_budget_s(value: bytes, where: str = "header X-Latency-Budget-Ms") -> float:
    """Parses milliseconds and returns seconds. where: origin of the value, for messages. Raises Malformed."""
    try:
        budget_ms = math.nan if b"_" in value else float(value)  # float accepts 1_000
    except ValueError:
        budget_ms = math.nan
    if not 0 < budget_ms <= MAX_BUDGET_MS:
        text = value[:40].decode("latin-1")
        raise Malformed(
            f"{where} is '{text}'; it is a number of milliseconds above 0, {MAX_BUDGET_MS} (an hour) at most"
        )
    return max(budget_ms / 1e3, MIN_BUDGET_S)


def parse_priority(value: bytes) -> int:
    """Parses a priority. Raises Malformed."""
    if not value.isdigit() or len(value) > 9 or int(value) > MAX_PRIORITY:
        text = value[:40].decode("latin-1")
        raise Malformed(
            f"header X-Polyrec-Priority is '{text}'; it is 0 (the default, lowest), 1 (highest) or more"
        )
    return int(value)


def parse_quality(value: bytes, where: str = "header X-Polyrec-Quality") -> bool:
    """Parses `required` (True) or `any` (False). where: origin, for messages. Raises Malformed."""
    if value not in (b"required", b"any"):
        text = value[:40].decode("latin-1")
        raise Malformed(f"{where} is '{text}'; it is 'required' or 'any'")
    return value == b"required"
