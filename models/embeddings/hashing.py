"""Universal hashes and their transforms: map an id to k numbers, the input of a DHE decoder.

    h_i(x) = ((a_i x + b_i) mod p) mod m,   a_i in [1, p-1], b_i in [0, p-1], p prime

(Kang et al., Learning to embed categorical features without embedding tables, KDD'21, section 4.1).
The uniform transform maps a hash to [-1, 1]; the Gaussian one maps pairs of uniform numbers to pairs
of normal ones (Box-Muller). All k hashes of all ids are computed as whole arrays and exactly: in float64 up
to about 94 million ids, where every product is below 2^53, and beyond in 64-bit integers, whose division is
slower, with ids in two parts so that no product exceeds 2^63.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

EXACT = 2**53
PART_BITS = 21
MOST_IDS = 2 ** (2 * PART_BITS)
CACHED = 32_768

CodeTransform = Literal["uniform", "gaussian"]
VARIANCE: dict[CodeTransform, float] = {"uniform": 1 / 3, "gaussian": 1.0}
"""Variance of the codes of each transform."""


class UniversalHashes(nn.Module):
    """k hash functions, drawn from a seed, with values in [0, m).

    domain: ids are in [0, domain); p is the first prime above max(m, domain).
    Raises ValueError if products would not be exact (domain beyond MOST_IDS, 4.4e12).
    """

    def __init__(self, k: int, m: int, domain: int, seed: int, transform: CodeTransform) -> None:
        super().__init__()
        if transform == "gaussian" and k % 2:
            raise ValueError(f"the gaussian transform pairs its hashes: k must be even, not {k}")
        self.k, self.m, self.transform = k, m, transform
        self.p = next_prime(max(m, domain))
        if self.p >= MOST_IDS:
            raise ValueError(f"{domain} ids are too many for exact hashing in 64 bits")
        self.in_floats = self.p * self.p < EXACT
        random = np.random.default_rng(seed)
        a, b = random.integers(1, self.p, k), random.integers(0, self.p, k)
        kind = np.float64 if self.in_floats else np.int64
        self.register_buffer("a", torch.from_numpy(a.astype(kind)), persistent=False)
        self.register_buffer("b", torch.from_numpy(b.astype(kind)), persistent=False)

    def hashes(self, ids: Tensor) -> Tensor:
        """Returns the hashes, float64 [n, k], integers in [0, m). ids: int64 [n]."""
        if not self.in_floats:
            return self._hashes_in_integers(ids)
        z = ids.double().unsqueeze(1) * self.get_buffer("a")
        z += self.get_buffer("b")
        z = _mod(z, self.p)
        return _mod(z, self.m)

    def _hashes_in_integers(self, ids: Tensor) -> Tensor:
        """With x = high 2^21 + low: a x = (a high mod p) 2^21 + a low, both terms below 2^63."""
        a, low = self.get_buffer("a"), ids.unsqueeze(1) & (2**PART_BITS - 1)
        z = (ids.unsqueeze(1) >> PART_BITS) * a % self.p
        z = ((z << PART_BITS) % self.p + a * low % self.p + self.get_buffer("b")) % self.p
        codes: Tensor = (z % self.m).double()
        return codes

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the transformed hashes, float32 [n, k]. ids: int64 [n].

        Works on parts that fit the second-level cache, since each step passes over all numbers.
        """
        parts = [self._codes(part) for part in torch.split(ids, max(1, CACHED // self.k))]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _codes(self, ids: Tensor) -> Tensor:
        h = self.hashes(ids)
        if self.transform == "uniform":
            return h.mul_(2.0 / (self.m - 1)).sub_(1.0).float()
        # +1 keeps the logarithm finite
        u = h.add_(1.0).div_(self.m + 1.0)
        radius = u[:, 0::2].log().mul_(-2.0).sqrt_()
        angle = u[:, 1::2].mul(2.0 * math.pi)
        return torch.cat((radius * angle.cos(), radius * angle.sin()), dim=1).float()


def _mod(z: Tensor, n: int) -> Tensor:
    """Computes z mod n in place, for integers 0 <= z < 2^53, where the quotient is exact."""
    return z.sub_(torch.div(z, n).floor_().mul_(n))


def next_prime(n: int) -> int:
    """The smallest prime above n."""
    candidate = n + 1
    while not _is_prime(candidate):
        candidate += 1
    return candidate


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))
