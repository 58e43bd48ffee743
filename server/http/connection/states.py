"""The states of an HTTP connection and their transitions.

READING_HEAD  until a head is complete, also while idle between two requests
READING_BODY  until the body is complete; the request may be answered before that
WAITING       the dispatcher or the application processes the request
WRITING       the answer fills the write buffer; no request is read until the client has read it
DISCARDING    the rest of a request that was answered early is read and dropped, within bounds
CLOSED        nothing more is read

READING_HEAD -> READING_BODY -> WAITING -> (WRITING ->) READING_HEAD     a request and its answer
READING_BODY -> DISCARDING -> READING_HEAD                               answered before the body arrived
any of them  -> DISCARDING -> CLOSED                                     malformed, or a time limit passed
READING_HEAD, WAITING -> CLOSED                                          idle for too long; last answer
"""

from __future__ import annotations

from enum import Enum, auto


class ConnectionState(Enum):
    """See the module's docstring."""

    READING_HEAD = auto()
    READING_BODY = auto()
    WAITING = auto()
    WRITING = auto()
    DISCARDING = auto()
    CLOSED = auto()


READING_HEAD, READING_BODY, WAITING, WRITING, DISCARDING, CLOSED = ConnectionState
