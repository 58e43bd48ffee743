"""Errors of a prediction, the same in process and over HTTP, one class for each remedy."""

from __future__ import annotations

from polyrec.models.errors import PolyrecError


class PredictionError(PolyrecError):
    """Base of every error of `predict` and `rank`.

    status: HTTP's. request_id: in the server's log and traces. Both are None if no server answered.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.request_id: str | None = None


class InvalidRequest(PredictionError):
    """The rows or options are wrong (4xx): the message names the feature and the offense."""


class NotAllowed(PredictionError):
    """No token, a wrong one, or one without the right (401, 403)."""


class Overloaded(PredictionError):
    """Rejected by admission control or over the client's rate (429), and no time is left to try again.

    retry_after_s: seconds until there should be room, None if the server did not say.
    """

    def __init__(self, message: str, status: int | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message, status)
        self.retry_after_s = retry_after_s


class Unavailable(PredictionError):
    """No server answers, or it is loading, draining or failing (503, 5xx)."""


class DeadlineExceeded(PredictionError):
    """The budget passed before an answer came (504, or the client's own clock)."""
