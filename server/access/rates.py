"""Rate limits: a token bucket, and a limit on wrong tokens per client address."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

MAX_ADDRESSES = 4096
"""Maximum addresses for which wrong tokens are counted; the least recently used is evicted."""
GUESS_BURST = 10
"""Wrong tokens that an address may send in a burst."""
GUESSES_PER_SECOND = 1.0


class TokenBucket:
    """A token bucket, initially full. rate: tokens per second. burst: capacity, at least 1."""

    __slots__ = ("_at_s", "_burst", "_level", "_rate")

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        self._rate = rate
        self._burst = self._level = max(1.0, burst)
        self._at_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Returns the seconds until a token can be taken, 0 for now."""
        self._level = min(self._burst, self._level + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
        return max(0.0, (1.0 - self._level) / self._rate)

    def take(self, now_s: float) -> float:
        """Takes a token and returns 0, or returns the seconds until one is available."""
        wait_s = self.wait_s(now_s)
        if not wait_s:
            self._level -= 1.0
        return wait_s


class GuessLimiter:
    """Limits wrong tokens per address to a burst of GUESS_BURST and then GUESSES_PER_SECOND.

    Memory is bounded.
    """

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def wait_s(self, address: str, now_s: float) -> float:
        """Returns the seconds until tokens from this address are checked again, 0 for now."""
        bucket = self._buckets.get(network_of(address))
        return 0.0 if bucket is None else bucket.wait_s(now_s)

    def wrong(self, address: str, now_s: float) -> None:
        """Counts a wrong token from an address."""
        network = network_of(address)
        bucket = self._buckets.get(network)
        if bucket is None:
            if len(self._buckets) >= MAX_ADDRESSES:
                self._buckets.popitem(last=False)
            bucket = self._buckets[network] = TokenBucket(GUESSES_PER_SECOND, GUESS_BURST, now_s)
        else:
            self._buckets.move_to_end(network)
        bucket.take(now_s)


def network_of(address: str) -> str:
    """Returns the key by which clients are limited and logged: an IPv4 address or an IPv6 /64 prefix."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{ipaddress.IPv6Address(int(parsed) >> 64 << 64)}/64"
