"""The messages that a feed reads in their order, each to be acknowledged or rejected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from polyrec.models.errors import PolyrecError

READ_MESSAGES = 500
"""Maximum messages of a read."""
BLOCK_S = 0.5
"""Longest wait of a read for a message."""
ANSWER_S = 5.0
"""Longest wait for any other answer."""
LATEST_TIME_S = 1e11
"""Latest Unix time that an update call accepts; a larger number is not a time in seconds."""


class FeedFailed(PolyrecError):
    """The feed cannot continue: a wrong URL, stream, token or path."""


class SourceAway(PolyrecError):
    """The source does not answer; it may later."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a source. id: unique in it. fields: by name, as `entries.parse_entry` takes them.

    time_s: Unix time at which it was made, None if that is not known. part: messages are in order within
    each part of the source.
    """

    id: str
    fields: Mapping[bytes, bytes]
    time_s: float | None = None
    part: int = 0


class Source(Protocol):
    """A stream of messages which remembers what was acknowledged.

    All methods may raise SourceAway and FeedFailed.
    """

    @property
    def name(self) -> str:
        """Name of the stream or topic."""

    def open(self) -> None:
        """Connects, and begins after what was acknowledged, or at the beginning."""

    def read(self, block: bool) -> Sequence[Message]:
        """Returns the next messages; none if there are none now, with `block` after a wait of BLOCK_S."""

    def acknowledge(self, messages: Sequence[Message]) -> None:
        """Remembers that messages are done. Within each part they are the first that are not."""

    def reject(self, message: Message, reason: str) -> None:
        """Keeps a message where an operator finds it, with the reason, and acknowledges it."""

    def rewind(self) -> None:
        """Continues with the first message that is not acknowledged, after SourceAway."""

    def close(self) -> None:
        """Disconnects."""
