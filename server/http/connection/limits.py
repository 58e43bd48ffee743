"""Limits of connections: bytes, counts and times."""

from __future__ import annotations

import resource
from dataclasses import dataclass

RESERVED_DESCRIPTORS = 64
"""File descriptors kept for bundles, lanes and logs."""
HANDSHAKES_SHARE = 0.1
"""Unfinished TLS handshakes, as a share of the connections that the server may have."""


def descriptor_limit(tls: bool = False) -> int:
    """Returns the connections that the process has file descriptors for; raises the soft limit first.

    tls: unfinished handshakes have theirs beside them.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else max(soft, 65536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    free = min(soft, 65536) - RESERVED_DESCRIPTORS
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
