"""Decides what a call sends, and what an answer or a failure means; the clients do the I/O and the sleeping.

    Call -> attempt() -> headers, time limit -> (client sends) -> answered() -> document, or seconds to wait
                                                               or failed()   -> seconds to wait, or an error

A call has one deadline for everything: retries and network time included. Each attempt tells the server the
remaining time, so that it does not work for a client that has given up.

A request is only retried if it cannot have been answered or the server asks for it: after 429 and 503,
following their Retry-After (else a backoff), and after broken connections. Predictions have no side effects,
so repeating one is safe. A wait that would pass the deadline is not begun; the error is raised at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import orjson

from polyrec.client.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NotAllowed,
    Overloaded,
    PredictionError,
    Unavailable,
)

A = TypeVar("A")
FIRST_BACKOFF_S = 0.05
"""Mean wait before the first retry where the server named none; it doubles with each."""
MIN_S = 1e-3
"""Least time for an attempt: with less left it is not begun."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of calls.

    budget_ms: latency budget, from the call to its answer; None: the server's default budget, with
    `timeout_s` as the limit for everything together.
    timeout_s: maximum time of a call without a budget.
    retries: maximum number of attempts after the first.
    priority, quality: sent as X-Polyrec-Priority and X-Polyrec-Quality; both require permission.
    """

    budget_ms: float | None = None
    timeout_s: float = 10.0
    retries: int = 3
    priority: int | None = None
    quality: str | None = None

    def __post_init__(self) -> None:
        if self.budget_ms is not None and not 0 < self.budget_ms <= 3_600_000:
            raise InvalidRequest(f"budget_ms is {self.budget_ms}; it is above 0 and at most 3,600,000")
        if not 0 < self.timeout_s <= 3_600:
            raise InvalidRequest(f"timeout_s is {self.timeout_s}; it is above 0 and at most 3,600")
        if self.retries < 0:
            raise InvalidRequest(f"retries is {self.retries}; it is 0 or more")


def options_of(given: Mapping[str, Any], base: Options | None = None) -> Options:
    """Returns `base` with the given options replaced. Raises InvalidRequest for an unknown option."""
    try:
        return replace(base or Options(), **given)
    except TypeError:
        known = Options.__slots__
        (odd, *_) = [name for name in given if name not in known]
        raise InvalidRequest(f"unknown option '{odd}'; known: {', '.join(known)}") from None


class Call:
    """The state of one call. clock: returns monotonic seconds. jitter: returns a number in [0, 1)."""

    def __init__(
        self,
        options: Options,
        clock: Callable[[], float],
        request_id: str | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._options = options
        self._clock = clock
        self._jitter = jitter
        self._request_id = request_id
        limit_s = options.timeout_s if options.budget_ms is None else options.budget_ms / 1e3
        self._deadline = clock() + limit_s
        self.attempts = 0

    def attempt(self) -> tuple[dict[str, str], float]:
        """Begins an attempt; returns its headers and the seconds left. Raises DeadlineExceeded."""
        left_s = self._deadline - self._clock()
        if left_s < MIN_S:
            raise self.timed_out()
        self.attempts += 1
        headers = {}
        if self._options.budget_ms is not None:
            headers["X-Latency-Budget-Ms"] = f"{left_s * 1e3:.3f}"
        if self._options.priority is not None:
            headers["X-Polyrec-Priority"] = str(self._options.priority)
        if self._options.quality is not None:
            headers["X-Polyrec-Quality"] = self._options.quality
        if self._request_id is not None:
            headers["X-Request-Id"] = self._request_id
        return headers, left_s

    def answered(self, status: int, headers: Mapping[str, str], body: bytes) -> dict[str, Any] | float:
        """Returns the answer's document, or the seconds to wait before the next attempt.

        headers: a case-insensitive mapping. Raises PredictionError.
        """
        if status == 200:
            return _document(body)
        message = _message(status, body)
        if status in (429, 503):
            retry_after_s = _seconds(headers.get("retry-after"))
            error: PredictionError
            if status == 429:
                error = Overloaded(message, status, retry_after_s)
            else:
                error = Unavailable(message, status)
            error.request_id = headers.get("x-request-id")
            return self._wait(error, retry_after_s)
        error = _error(status, message)
        error.request_id = headers.get("x-request-id")
        raise error

    def read(
        self,
        reader: Callable[[dict[str, Any], str | None, int], A],
        document: dict[str, Any],
        headers: Mapping[str, str],
    ) -> A:
        """Converts a document to the typed answer. Raises Unavailable if another kind of server sent it."""
        try:
            return reader(document, headers.get("x-request-id"), self.attempts)
        except (KeyError, TypeError, ValueError):
            raise Unavailable(f"no answer of a Polyrec server: {str(document)[:60]}", 200) from None

    def failed(self, reason: str) -> float:
        """Returns the seconds to wait after a connection was refused or broke. Raises Unavailable."""
        return self._wait(Unavailable(reason), None)

    def timed_out(self) -> DeadlineExceeded:
        """Returns the error of a call whose time is up."""
        options = self._options
        limit = f"{options.timeout_s:g} s" if options.budget_ms is None else f"{options.budget_ms:g} ms"
        return DeadlineExceeded(f"no answer within {limit} ({self.attempts} attempts)")

    def _wait(self, error: PredictionError, asked_s: float | None) -> float:
        wait_s = asked_s
        if wait_s is None:
            wait_s = FIRST_BACKOFF_S * 2 ** (self.attempts - 1) * (0.5 + self._jitter())
        too_late = self._clock() + wait_s + MIN_S > self._deadline
        if self.attempts > self._options.retries or too_late:
            raise error
        return wait_s


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict):
        raise Unavailable(f"the answer is no JSON object: {body[:60]!r}; is this a Polyrec server?", 200)
    return document


def _message(status: int, body: bytes) -> str:
    """Returns the server's message, or the beginning of the body if something else answered."""
    try:
        return str(orjson.loads(body)["error"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return f"status {status} without a message of Polyrec: {body[:60]!r}"


def _seconds(header: str | None) -> float | None:
    """Parses Retry-After as seconds; None if it is absent or a date, which a proxy may send."""
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _error(status: int, message: str) -> PredictionError:
    if status in (401, 403):
        return NotAllowed(message, status)
    if status == 504:
        return DeadlineExceeded(message, status)
    if 400 <= status < 500:
        return InvalidRequest(message, status)
    return Unavailable(message, status)
