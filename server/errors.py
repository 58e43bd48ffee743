"""The one place where a refusal gets its HTTP status.

Whatever is raised while a request is read, queued or executed comes here and leaves as a `Refusal`:
a status that means one thing, one line for people, and the headers that go with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus

import orjson

from models.errors import FeatureError

JSON = b"application/json"
MESSAGE_LENGTH = 500
QUOTED = 64
"""Characters of a key or a value that a message repeats."""


class RequestError(Exception):
    """A request that gets no prediction. Subclasses say why; the message is for the client."""

    status = HTTPStatus.BAD_REQUEST
    outcome = "invalid"


class Malformed(RequestError):
    """The body or a header cannot be read at all."""


class Invalid(RequestError):
    """Readable, but against the schema: unknown feature, wrong type, out of range."""

    status = HTTPStatus.UNPROCESSABLE_ENTITY


class Forbidden(RequestError):
    """Not allowed on this server."""

    status = HTTPStatus.FORBIDDEN


class Unauthorised(RequestError):
    """Who asks did not say who they are."""

    status = HTTPStatus.UNAUTHORIZED


class NotFound(RequestError):
    """No such model, version or page."""

    status = HTTPStatus.NOT_FOUND


class MethodNotAllowed(RequestError):
    """The page exists, the method does not."""

    status = HTTPStatus.METHOD_NOT_ALLOWED

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"method {method} is not allowed here; use {allowed}")
        self.allowed = allowed


class TooLarge(RequestError):
    """More bytes or rows than the plan's limits allow."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class Overloaded(RequestError):
    """The lane's queue is full; retry_after_s is when it should have drained."""

    status = HTTPStatus.TOO_MANY_REQUESTS
    outcome = "overloaded"

    def __init__(self, queued_rows: int, retry_after_s: int) -> None:
        super().__init__(f"overloaded: {queued_rows} rows are waiting; retry in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class NotReady(RequestError):
    """Loading, or draining before it stops."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    outcome = "unavailable"


class DeadlinePassed(RequestError):
    """The latency budget was spent, or could not be met any more, before the query was executed."""

    status = HTTPStatus.GATEWAY_TIMEOUT
    outcome = "expired"

    def __init__(self, budget_s: float) -> None:
        super().__init__(f"the latency budget of {budget_s * 1e3:g} ms passed, or could not be met any more")


class Defect(RequestError):
    """A failure of Polyrec itself; the log has the trace, the client only this."""

    status = HTTPStatus.INTERNAL_SERVER_ERROR
    outcome = "error"


@dataclass(frozen=True, slots=True)
class Refusal:
    """What goes back to the client instead of an answer."""

    status: int
    outcome: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]


def refusal(error: Exception) -> Refusal:
    """Any exception -> status, `{"error": ...}` and headers."""
    if isinstance(error, FeatureError):
        error = Invalid(str(error))
    elif not isinstance(error, RequestError):
        error = Defect("internal error; the server's log has the details")
    headers: list[tuple[bytes, bytes]] = []
    if isinstance(error, Overloaded):
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    if isinstance(error, Unauthorised):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", error.allowed.encode()))
    # past capacity most answers are one of a few of these
    body = _short_body if isinstance(error, Overloaded | DeadlinePassed) else error_body
    return Refusal(int(error.status), error.outcome, body(str(error)), tuple(headers))


def shortened(text: str) -> str:
    """At most QUOTED characters of a client's own, for a message."""
    return text if len(text) <= QUOTED else f"{text[:QUOTED]}..."


def error_body(message: str) -> bytes:
    """`{"error": message}` in one line of bounded length, whatever a client made us quote."""
    line = " ".join(message[:MESSAGE_LENGTH].encode("utf-8", "backslashreplace").decode().split())
    return orjson.dumps({"error": line + " ..." if len(message) > MESSAGE_LENGTH else line})


_short_body = lru_cache(256)(error_body)
