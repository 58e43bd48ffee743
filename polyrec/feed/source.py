"""Defines the sources of a feed: ordered messages, each of which is acknowledged or rejected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from polyrec.models.errors import PolyrecError

READ_MESSAGES = 4000
"""Maximum messages of a read."""
MOST_ROWS = 4000
"""Default of the maximum rows per call."""
BLOCK_S = 0.5
"""Longest wait of a read for a message."""
ANSWER_S = 5.0
"""Longest wait for any other answer."""
LATEST_TIME_S = 1e11
"""Latest Unix time that an update call accepts; a larger number is not a time in seconds."""


class FeedFailed(PolyrecError):
    """Raised when the feed cannot continue: a wrong URL, stream, token or path."""


class SourceAway(PolyrecError):
    """Raised when the source does not answer, but may later."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a source.

    id: unique within the source. fields: by name, as `entries.parse_entry` expects them.
    time_s: Unix time at which it was created, None if unknown.
    part: messages are ordered within each part of the source.
    """

    id: str
    fields: Mapping[bytes, bytes]
    time_s: float | None = None
    part: int = 0


class Source(Protocol):
    """A stream of messages that remembers what was acknowledged.

    All methods may raise SourceAway and FeedFailed.
    """

    @property
    def name(self) -> str:
        """Name of the stream or topic."""

    def open(self) -> None:
        """Connects, and starts after the last acknowledged message, or at the beginning."""

    def read(self, block: bool) -> Sequence[Message]:
        """Returns the next messages, or none; with `block`, first waits up to BLOCK_S for new ones."""

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Marks messages as done. Within each part they must be the first unacknowledged ones."""

    def reject(self, message: Message, reason: str) -> None:
        """Stores a message with the reason where an operator finds it, and acknowledges it."""

    def rewind(self) -> None:
        """Restarts at the first unacknowledged message, after SourceAway."""

    def close(self) -> None:
        """Disconnects."""
