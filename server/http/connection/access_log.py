"""Writes the access log, which has one line for each answer in a sampled share of all answers.

A line has the request's id, method, route, status, duration, rows and client, the path that answered and why
quality was degraded. It never contains a body, headers or a query string, as these may contain tokens.
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
"""Key in an ASGI scope under which the application stores the request's `AnsweredBy`."""


class AnsweredBy(NamedTuple):
    """The path that answered a request, and why quality was degraded; None where not applicable.

    rows: number of rows in the request.
    client: the sender, as the name of its token or its network.
    """

    path: str | None = None
    reason: str | None = None
    rows: int | None = None
    client: str | None = None


class AnsweredRequest(Protocol):
    """A request as the access log sees it. route: the endpoint's route, empty if it is the URL's path."""

    @property
    def route(self) -> str: ...

    @property
    def answered_by(self) -> AnsweredBy: ...


class AccessLog:
    """Writes the lines, whatever the log level. rate: sampled share of answers, above 0 and at most 1."""

    def __init__(self, rate: float, uniform: Callable[[], float] = random.random) -> None:
        self._rate = rate
        self._uniform = uniform
        log.setLevel(logging.INFO)

    @staticmethod
    def from_rate(rate: float) -> AccessLog | None:
        """Returns a log of that share of answers, None if the share is 0."""
        return AccessLog(rate) if rate else None

    def samples(self) -> bool:
        """Whether the next answer is sampled; advances the sampling."""
        return self._uniform() < self._rate

    def answered(
        self,
        request_id: bytes,
        head: Head | None,
        request: AnsweredRequest | None,
        status: int,
        took_s: float,
    ) -> None:
        """Writes the line of an HTTP answer. head, request: None if it was rejected before they existed."""
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
        """Writes one line.

        route: the endpoint's route, or the URL's path if no endpoint matches.
        grpc_status: name of a gRPC call's status, since its HTTP status is always 200.
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
