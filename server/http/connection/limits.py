"""Limits on connections in bytes, counts and times, and an index of connections by client network."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_DESCRIPTORS = 65536
"""Maximum file descriptors used."""
ACCEPTS_PER_ITERATION = 16
"""Maximum connections accepted per loop iteration. An accept takes as long as rejecting a request."""
SURPLUS_DESCRIPTORS = 3 * ACCEPTS_PER_ITERATION
"""Maximum connections beyond the limit: one is closed two iterations after it was accepted."""
RESERVED_DESCRIPTORS = 64
"""Minimum file descriptors reserved for bundles, lanes and logs, where there are enough."""
CLOSE_S = 1.0
"""Maximum wait for an idle client's TLS close_notify, which a client that does not read never sends."""
LAST_S = 0.5
"""Time that clients have to read an answer once the drain timeout is over."""
HANDSHAKES_SHARE = 0.1
"""Maximum unfinished TLS handshakes, as a share of the maximum connections."""


def max_connections(open_now: int, tls: bool = False, grpc: bool = False) -> int:
    """Raises the soft limit of file descriptors, and returns the number of connections it suffices for.

    open_now: descriptors open without connections. As many again are reserved for a reload, which opens all
    bundles and lanes a second time, and at least SURPLUS_DESCRIPTORS, but no more than four fifths of the
    others.
    tls: whether unfinished handshakes need descriptors too.
    grpc: whether gRPC is served, for which half of the connections are reserved.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else max(soft, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    left = min(soft, MAX_DESCRIPTORS) - open_now
    left -= min(max(open_now, RESERVED_DESCRIPTORS - open_now, SURPLUS_DESCRIPTORS), left - left // 5)
    free = left // (2 if grpc else 1)
    return max(1, int(free / (1 + HANDSHAKES_SHARE)) if tls else free)


def open_descriptors() -> int:
    """Returns the number of file descriptors that this process has open."""
    return len(os.listdir("/proc/self/fd"))


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits on connections. Limits on a single request are in the plan (`planner.plan.Limits`).

    head_s: from a request's first byte until its head is complete.
    body_s: from the head until the body is complete.
    write_s: until the client has read an answer.
    idle_s: between two requests.
    discard_s, discard_bytes: how much of a rejected request is still read, so that the client can read the
        answer.
    requests: per connection.
    buffered_bytes: bytes of unfinished requests over all connections.
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
        """Interval in seconds at which time limits are checked."""
        times = (self.head_s, self.body_s, self.write_s, self.idle_s, self.discard_s)
        return min(0.25, min(times) / 4)


class Networks(Generic[T]):
    """Connections by client network (`access.rates.network_of`), with quick access to the largest network.

    At a limit, a connection of the largest network is closed, so a client that opens thousands keeps out only
    itself. All operations take constant time.

    total: number of members over all networks.
    """

    def __init__(self) -> None:
        self.total = 0
        self._members: dict[str, dict[T, None]] = {}
        self._by_size: dict[int, dict[str, None]] = {}
        self._most = 0

    def __len__(self) -> int:
        """Returns the number of networks that have members."""
        return len(self._members)

    def size(self, network: str) -> int:
        """Returns the number of members in a network."""
        return len(self._members.get(network, ()))

    def add(self, member: T, network: str) -> None:
        """Adds a member, which must not be in a network yet."""
        members = self._members.setdefault(network, {})
        members[member] = None
        self.total += 1
        self._resized(network, len(members) - 1, len(members))
        self._most = max(self._most, len(members))

    def discard(self, member: T, network: str) -> bool:
        """Removes a member; returns whether it was present."""
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
        """Makes a member the newest in its network."""
        members = self._members[network]
        members[member] = members.pop(member)

    def largest(self) -> Iterator[T]:
        """Iterates over the members of the largest network, oldest first."""
        if self._members:
            yield from self._members[next(iter(self._by_size[self._most]))]

    def _resized(self, network: str, before: int, after: int) -> None:
        if before:
            del self._by_size[before][network]
            if not self._by_size[before]:
                del self._by_size[before]
        if after:
            self._by_size.setdefault(after, {})[network] = None
