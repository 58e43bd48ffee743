"""The access log: one line for each answer of a sampled share of them.

A line has the request's id, method, route, status and milliseconds, the path that answered, why quality was
degraded, the rows and the client. It never has a body, a header or a query, where tokens may be.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import NamedTuple, Protocol

from polyrec.server.http.connection.head import Head

log = logging.getLogger("polyrec.requests")

MAX_ROUTE_LENGTH = 200
ANSWERED_BY = "polyrec.answered_by"
"""Key in an ASGI scope of the `AnsweredBy` of a request that the application has answered."""


class AnsweredBy(NamedTuple):
    """The path that answered a request, and why quality was degraded; None if there is none.

    rows: of the request. client: who sent it, the name of its token or its network.
    """

    path: str | None = None
    reason: str | None = None
    rows: int | None = None
    client: str | None = None


class AnsweredRequest(Protocol):
    """A request as its line names it. route: of its endpoint; empty: that is the path of its URL."""

    @property
    def route(self) -> str: ...

    @property
    def answered_by(self) -> AnsweredBy: ...


class AccessLog:
    """Writes the lines, at any log level. rate: share of answers, above 0 and up to 1."""

    def __init__(self, rate: float, uniform: Callable[[], float] = random.random) -> None:
        self._rate = rate
        self._uniform = uniform
        log.setLevel(logging.INFO)

    @staticmethod
    def of(rate: float) -> AccessLog | None:
        """A log of that share of answers; None if that is 0."""
        return AccessLog(rate) if rate else None

    def samples(self) -> bool:
        """Whether the next answer gets a line."""
        return self._uniform() < self._rate

    def answered(
        self,
        request_id: bytes,
        head: Head | None,
        request: AnsweredRequest | None,
        status: int,
        took_s: float,
    ) -> None:
        """Writes the line of an HTTP answer. head, request: None if it was rejected before it had one."""
        method = b"" if head is None else head.method
        route = "" if head is None else head.target.partition(b"?")[0].decode("latin-1")
        answered_by = AnsweredBy()
        if request is not None:
            route, answered_by = request.route or route, request.answered_by
        self.write(request_id, method, route, status, took_s, answered_by)

    def write(
        self,
        request_id: bytes,
        method: bytes,
        route: str,
        status: int,
        took_s: float,
        answered_by: AnsweredBy,
        grpc_status: str | None = None,
    ) -> None:
        """Writes one line. route: of the endpoint, or the path of the URL if none has it.

        grpc_status: name of the status of a call, whose HTTP status is always 200.
        """
        fields = {
            "request_id": request_id.decode("ascii"),
            "method": method.decode("ascii") or None,
            "route": route[:MAX_ROUTE_LENGTH] or None,
            "status": status,
            "ms": round(took_s * 1e3, 3),
            **answered_by._asdict(),
        }
        if grpc_status is not None:
            fields["grpc_status"] = grpc_status
        log.info("answer", extra={"fields": fields})
