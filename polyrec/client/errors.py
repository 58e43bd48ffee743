"""Defines the errors of a prediction, the same in process and over HTTP, one class per remedy."""

from __future__ import annotations

from polyrec.models.errors import PolyrecError


class PredictionError(PolyrecError):
    """Base class of every error of `predict` and `rank`.

    status: HTTP status. request_id: identifies it in the server's log and traces. Both are None if no server
    answered.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.request_id: str | None = None


class InvalidRequest(PredictionError):
    """The rows or options are wrong (4xx); the message names the feature and the problem."""


class NotAllowed(PredictionError):
    """The token is missing, wrong, or lacks the permission (401, 403)."""


class Overloaded(PredictionError):
    """Rejected by admission control or a rate limit (429), with no time left to retry.

    retry_after_s: seconds until there should be capacity, None if the server did not say.
    """

    def __init__(self, message: str, status: int | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message, status)
        self.retry_after_s = retry_after_s


class Unavailable(PredictionError):
    """No server answered, or it is loading, draining or failing (503, 5xx)."""


class DeadlineExceeded(PredictionError):
    """The budget passed before an answer arrived (504, or the client's own clock)."""
