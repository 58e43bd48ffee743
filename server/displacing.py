"""A set of limited size in which a new member displaces the least recently used one.

server/grpc limits calls and streams with it. Rejecting new members instead would let one client keep out all
others with calls that it opens and never uses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class DisplacingSet(Generic[T]):
    """A set of at most `max_members` members, iterated in order of last use."""

    def __init__(self, max_members: int) -> None:
        self._max_members = max_members
        self._members: dict[T, None] = {}

    def add(self, member: T) -> T | None:
        """Adds a member; returns the displaced one, None if the limit was not reached."""
        displaced = None
        if len(self._members) >= self._max_members:
            displaced = next(iter(self._members))
            del self._members[displaced]
        self._members[member] = None
        return displaced

    def discard(self, member: T) -> None:
        """Removes a member if present."""
        self._members.pop(member, None)

    def used(self, member: T) -> None:
        """Marks a member as most recently used, if present."""
        if member in self._members:
            del self._members[member]
            self._members[member] = None

    def __contains__(self, member: object) -> bool:
        return member in self._members

    def __iter__(self) -> Iterator[T]:
        return iter(self._members)
