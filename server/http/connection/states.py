"""The states of an HTTP connection and their transitions.

READING_HEAD  waits for a complete head; also while idle between requests
READING_BODY  waits for the complete body; the request may be answered before that
WAITING       the dispatcher or the application processes the request
WRITING       the answer fills the write buffer; the next request is read once the client has read it
DISCARDING    the rest of a request that was answered early is read and dropped, within limits
CLOSED        nothing more is read

READING_HEAD -> READING_BODY -> WAITING -> (WRITING ->) READING_HEAD     a request and its answer
READING_BODY -> DISCARDING -> READING_HEAD                               answered before the body arrived
any state    -> DISCARDING -> CLOSED                                     malformed, or a timeout
READING_HEAD, WAITING -> CLOSED                                          idle for too long; last answer
"""

from __future__ import annotations

from enum import Enum, auto


class ConnectionState(Enum):
    """State of a connection; the module docstring describes each."""

    READING_HEAD = auto()
    READING_BODY = auto()
    WAITING = auto()
    WRITING = auto()
    DISCARDING = auto()
    CLOSED = auto()


READING_HEAD, READING_BODY, WAITING, WRITING, DISCARDING, CLOSED = ConnectionState
