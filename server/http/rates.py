"""Rate limits: a token bucket, and the limit on wrong tokens of each address."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

MAX_ADDRESSES = 4096
"""Maximum addresses with a bucket for wrong tokens; the least recently used one is evicted."""
GUESS_BURST = 10
"""Burst of wrong tokens that an address may send."""
GUESSES_PER_SECOND = 1.0


class TokenBucket:
    """A token bucket that is full at first. rate: tokens per second. burst: its capacity, at least 1."""

    __slots__ = ("_at_s", "_burst", "_level", "_rate")

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        self._rate = rate
        self._burst = self._level = max(1.0, burst)
        self._at_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Seconds until a token can be taken; 0: now."""
        self._level = min(self._burst, self._level + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
        return max(0.0, (1.0 - self._level) / self._rate)

    def take(self, now_s: float) -> float:
        """Takes a token and returns 0, or returns the seconds until there is one."""
        wait_s = self.wait_s(now_s)
        if not wait_s:
            self._level -= 1.0
        return wait_s


class GuessLimiter:
    """Wrong tokens by client address: GUESS_BURST at once, then GUESSES_PER_SECOND. Memory is bounded."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def wait_s(self, address: str, now_s: float) -> float:
        """Seconds until a token from this address is checked again; 0: now."""
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
    """The key by which addresses are limited: an IPv4 address, or the /64 prefix of an IPv6 address.

    Logs name clients by it.
    """
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{ipaddress.IPv6Address(int(parsed) >> 64 << 64)}/64"
