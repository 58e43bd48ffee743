"""Limits of connections: bytes, counts and times; which network has most of them."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

RESERVED_DESCRIPTORS = 64
"""File descriptors kept for bundles, lanes and logs."""
CLOSE_S = 1.0
"""Wait for an idle client to agree to the end of TLS, which one that does not read never does."""
LAST_S = 0.5
"""Time for clients to read an answer when the drain timeout is over."""
HANDSHAKES_SHARE = 0.1
"""Unfinished TLS handshakes, as a share of the connections that the server may have."""


def descriptor_limit(tls: bool = False, grpc: bool = False) -> int:
    """Returns the connections that the process has file descriptors for; raises the soft limit first.

    tls: unfinished handshakes have theirs beside them. grpc: half of the connections may be gRPC's.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else max(soft, 65536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    free = (min(soft, 65536) - RESERVED_DESCRIPTORS) // (2 if grpc else 1)
    return max(1, int(free / (1 + HANDSHAKES_SHARE)) if tls else free)


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of connections; bytes and rows of single requests are the plan's (`planner.plan.Limits`).

    head_s: from a request's first byte until its head is complete. body_s: from its head until its body is
    complete. write_s: until the client has read an answer. idle_s: between requests. discard_s,
    discard_bytes: how long and how much of a rejected request is still read, so that the client can read the
    answer. requests: of one connection. buffered_bytes: of unfinished requests, over all connections.
    """

    head_s: float = 10.0
    body_s: float = 30.0
    write_s: float = 30.0
    idle_s: float = 75.0
    discard_s: float = 5.0
    discard_bytes: int = 64 * 2**20
    requests: int = 1_000_000
    connections: int = 10_000
    buffered_bytes: int = 256 * 2**20

    @property
    def sweep_s(self) -> float:
        """Seconds between two checks of the time limits."""
        times = (self.head_s, self.body_s, self.write_s, self.idle_s, self.discard_s)
        return min(0.25, min(times) / 4)


class Networks(Generic[T]):
    """Connections by the network of their clients (`rates.network_of`), to find the one with most of them.

    At a limit it gives way: a client that opens thousands keeps out itself, not others. All operations take
    constant time. total: the members of all networks.
    """

    def __init__(self) -> None:
        self.total = 0
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
        self.total += 1
        self._resized(network, len(members) - 1, len(members))
        self._most = max(self._most, len(members))

    def discard(self, member: T, network: str) -> bool:
        """Removes a member; returns whether it was one."""
        members = self._members.get(network, {})
        if member not in members:
            return False
        del members[member]
        self.total -= 1
        self._resized(network, len(members) + 1, len(members))
        if not members:
            del self._members[network]
        if self._most not in self._by_size:
            self._most -= 1
        return True

    def move_to_end(self, member: T, network: str) -> None:
        """Makes a member the newest of its network."""
        members = self._members[network]
        members[member] = members.pop(member)

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
