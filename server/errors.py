"""Request errors and their HTTP responses.

`error_response` converts every exception raised while a request is read, queued or executed to an
`ErrorResponse`: an unambiguous status, a one-line message, and the headers that belong to the status.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import NamedTuple

import orjson

from polyrec.models.errors import FeatureError

JSON = b"application/json"
MESSAGE_LENGTH = 500
QUOTED = 64
"""Maximum characters of client text that a message quotes."""


class RequestError(Exception):
    """A request gets no prediction. The message is for the client. outcome: value of a metric label."""

    status: HTTPStatus = HTTPStatus.BAD_REQUEST
    outcome = "invalid"


class Malformed(RequestError):
    """The body or a header cannot be parsed."""


class Invalid(RequestError):
    """The body contradicts the schema: unknown feature, wrong type, value out of range."""

    status = HTTPStatus.UNPROCESSABLE_ENTITY


class Forbidden(RequestError):
    """The call is not allowed on this server or to this client."""

    status = HTTPStatus.FORBIDDEN


class Unauthorized(RequestError):
    """The request has no token or an invalid one."""

    status = HTTPStatus.UNAUTHORIZED


class RateLimited(RequestError):
    """The client exceeds its rate, or its address sent too many wrong tokens.

    retry_after_s: whole seconds until the next request is allowed. Counted as `invalid`, since it does not
    count against the SLO.
    """

    status = HTTPStatus.TOO_MANY_REQUESTS

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(f"{message}; retry in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class NotFound(RequestError):
    """No such model, version or page."""

    status = HTTPStatus.NOT_FOUND


class UnknownModel(NotFound):
    """No such model. Such a request counts for no model, over HTTP and gRPC alike."""


class Misdirected(RequestError):
    """A call that concerns one process came to a port shared by several."""

    status = HTTPStatus.MISDIRECTED_REQUEST


class MethodNotAllowed(RequestError):
    """The path exists but does not support this method."""

    status = HTTPStatus.METHOD_NOT_ALLOWED

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"method {method} is not allowed here; use {allowed}")
        self.allowed = allowed


class Conflict(RequestError):
    """The call conflicts with what the server is doing, such as a reload during a rollout."""

    status = HTTPStatus.CONFLICT


class TooLarge(RequestError):
    """The request has more bytes or rows than the plan's limits allow."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class HttpViolation(RequestError):
    """A request violates HTTP or a connection limit. The connection is closed after the answer.

    limit: value of the metric label.
    """

    def __init__(self, status: HTTPStatus, limit: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.limit = limit


class TooBusy(HttpViolation):
    """The server is at its limit of connections or of unfinished requests."""

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(HTTPStatus.TOO_MANY_REQUESTS, limit, message)


class TooSlow(HttpViolation):
    """The head or the body of a request took longer than its limit."""

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(HTTPStatus.REQUEST_TIMEOUT, limit, message)


class Stopping(HttpViolation):
    """The request had not fully arrived when the server stopped."""

    def __init__(self) -> None:
        super().__init__(
            HTTPStatus.SERVICE_UNAVAILABLE, "drain", "the server is shutting down; retry on another"
        )


class Overloaded(RequestError):
    """The queue is full, or too long for the request's deadline.

    retry_after_s: whole seconds until a retry should succeed.
    """

    status = HTTPStatus.TOO_MANY_REQUESTS
    outcome = "overloaded"

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"overloaded: the backlog exceeds the latency budget; retry in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class NotReady(RequestError):
    """The server is loading or draining."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    outcome = "unavailable"


class DeadlinePassed(RequestError):
    """The latency budget passed, or could no longer be met, before the query was executed."""

    status = HTTPStatus.GATEWAY_TIMEOUT
    outcome = "expired"

    def __init__(self, budget_s: float | None = None) -> None:
        budget = "" if budget_s is None else f" of {budget_s * 1e3:g} ms"
        super().__init__(f"the latency budget{budget} passed, or can no longer be met")


class Defect(RequestError):
    """A failure of Polyrec itself. Only the log has the traceback."""

    status = HTTPStatus.INTERNAL_SERVER_ERROR
    outcome = "error"


class ErrorResponse(NamedTuple):
    """The response to a failed request. outcome: value of a metric label."""

    status: int
    outcome: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]


def error_response(error: Exception) -> ErrorResponse:
    """Converts any exception to a status, a body `{"error": ...}` and headers."""
    known = request_error(error)
    return ErrorResponse(known.status.value, known.outcome, error_body(str(known)), error_headers(known))


def request_error(error: Exception) -> RequestError:
    """Converts any exception to the error that the client sees."""
    if isinstance(error, FeatureError):
        return Invalid(str(error))
    if isinstance(error, RequestError):
        return error
    return Defect("internal error; the server's log has the details")


def error_headers(error: RequestError) -> tuple[tuple[bytes, bytes], ...]:
    """Returns the headers that belong to the error's status."""
    if isinstance(error, Overloaded | RateLimited):
        return ((b"retry-after", b"%d" % error.retry_after_s),)
    if error.status is HTTPStatus.TOO_MANY_REQUESTS:
        return ((b"retry-after", b"1"),)
    if isinstance(error, Unauthorized):
        return ((b"www-authenticate", b"Bearer"),)
    if isinstance(error, MethodNotAllowed):
        return ((b"allow", error.allowed.encode()),)
    return ()


def shortened(text: str) -> str:
    """Cuts a client's text to QUOTED characters, for a message."""
    return text if len(text) <= QUOTED else f"{text[:QUOTED]}..."


def error_body(message: str) -> bytes:
    """Returns `{"error": message}` as JSON."""
    return orjson.dumps({"error": one_line(message)})


def one_line(message: str) -> str:
    """Converts a message, which may quote client text, to one line of bounded length."""
    if len(message) <= MESSAGE_LENGTH and message.isascii() and message.isprintable():
        return message
    line = " ".join(message[:MESSAGE_LENGTH].encode("utf-8", "backslashreplace").decode().split())
    return line + " ..." if len(message) > MESSAGE_LENGTH else line
