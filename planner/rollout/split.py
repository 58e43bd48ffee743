"""Splits traffic between two versions, either by a hash of a request's field or by percentage.

By hash, a value always gets the same version, and a larger share includes the values of a smaller one. A salt
makes rollouts of different versions select different values.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

GOLDEN = 0.6180339887498949
"""Golden ratio: the fractional parts of its multiples are spread evenly, so any run of requests gets nearly
the exact share."""


@dataclass(slots=True)
class Split:
    """Decides which requests the canary answers. share: its share of the values or requests, 0 to 1."""

    share: float
    salt: str
    _turn: float = 0.0

    def takes(self, value: bytes) -> bool:
        """Returns whether the canary answers the requests with this value."""
        return position(value, self.salt) < self.share

    def takes_next(self) -> bool:
        """Returns whether the canary answers the next request, if requests are split individually."""
        self._turn = (self._turn + GOLDEN) % 1.0
        return self._turn < self.share


def position(value: bytes, salt: str) -> float:
    """Maps a value to [0, 1), uniformly over values and identically on every server."""
    digest = blake2b(value, digest_size=8, salt=salt.encode()[:16]).digest()
    return int.from_bytes(digest, "big") / 2**64
