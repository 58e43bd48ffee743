"""Connections by the network that their clients are in, to find the one that has most of them.

At a limit of connections, the network with most gives way: a client that opens thousands keeps out itself,
not others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Networks(Generic[T]):
    """Members of networks (`rates.network_of`); all operations take constant time."""

    def __init__(self) -> None:
        self._members: dict[str, dict[T, None]] = {}
        self._by_size: dict[int, dict[str, None]] = {}
        self._most = 0

    def __len__(self) -> int:
        """The number of networks with a member."""
        return len(self._members)

    def size(self, network: str) -> int:
        """The number of a network's members."""
        return len(self._members.get(network, ()))

    def add(self, member: T, network: str) -> None:
        """Adds a member, which is in no network yet."""
        members = self._members.setdefault(network, {})
        members[member] = None
        self._resized(network, len(members) - 1, len(members))
        self._most = max(self._most, len(members))

    def discard(self, member: T, network: str) -> bool:
        """Removes a member; returns whether it was one."""
        members = self._members.get(network, {})
        if member not in members:
            return False
        del members[member]
        self._resized(network, len(members) + 1, len(members))
        if not members:
            del self._members[network]
        if self._most not in self._by_size:
            self._most -= 1
        return True

    def largest(self) -> Iterator[T]:
        """The members of the network that has most, the oldest first."""
        if self._members:
            yield from self._members[next(iter(self._by_size[self._most]))]

    def _resized(self, network: str, before: int, after: int) -> None:
        if before:
            del self._by_size[before][network]
            if not self._by_size[before]:
                del self._by_size[before]
        if after:
            self._by_size.setdefault(after, {})[network] = None
