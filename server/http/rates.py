"""Rates: a token bucket, and how often each address may try a wrong token."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

MOST_ADDRESSES = 4096
"""Addresses remembered for wrong tokens; the one that was quiet for longest is forgotten first."""
GUESSES = 10
"""Wrong tokens that an address may try at once."""
GUESSES_A_SECOND = 1.0


class Bucket:
    """A token bucket that is full at first. rate: per second; burst: most that it holds, at least 1."""

    __slots__ = ("_at_s", "_burst", "_level", "_rate")

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        self._rate = rate
        self._burst = self._level = max(1.0, burst)
        self._at_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Seconds until one may be taken; 0: now."""
        self._level = min(self._burst, self._level + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
        return max(0.0, (1.0 - self._level) / self._rate)

    def take(self, now_s: float) -> float:
        """Takes one, or says after how many seconds it can be had."""
        wait_s = self.wait_s(now_s)
        if not wait_s:
            self._level -= 1.0
        return wait_s


class Guesses:
    """Wrong tokens by client address: GUESSES at once, then GUESSES_A_SECOND. Memory is bounded."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def wait_s(self, address: str, now_s: float) -> float:
        """Seconds until a token from this address is looked at again; 0: now."""
        bucket = self._buckets.get(network_of(address))
        return 0.0 if bucket is None else bucket.wait_s(now_s)

    def wrong(self, address: str, now_s: float) -> None:
        """Books a wrong token."""
        network = network_of(address)
        bucket = self._buckets.get(network)
        if bucket is None:
            if len(self._buckets) >= MOST_ADDRESSES:
                self._buckets.popitem(last=False)
            bucket = self._buckets[network] = Bucket(GUESSES_A_SECOND, GUESSES, now_s)
        else:
            self._buckets.move_to_end(network)
        bucket.take(now_s)


def network_of(address: str) -> str:
    """What one client can be expected to hold: an IPv4 address, or the /64 of an IPv6 address."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(int(parsed) >> 64)
