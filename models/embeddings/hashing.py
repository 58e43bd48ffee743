"""Universal hashes and their transforms: map an id to k numbers, the input of a DHE decoder.

    h_i(x) = ((a_i x + b_i) mod p) mod m,   a_i in [1, p-1], b_i in [0, p-1], p prime

(Kang et al., Learning to embed categorical features without embedding tables, KDD'21, section 4.1).
The uniform transform maps a hash to [-1, 1]; the Gaussian one maps pairs of uniform numbers to pairs
of normal ones (Box-Muller). All k hashes of all ids are computed as whole arrays in float64, where
every product below 2^53 is exact.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

EXACT = 2**53
CACHED = 32_768

CodeTransform = Literal["uniform", "gaussian"]


class UniversalHashes(nn.Module):
    """k hash functions, drawn from a seed, with values in [0, m).

    domain: ids are in [0, domain); p is the first prime above max(m, domain).
    Raises ValueError if products would not be exact (domain or m beyond about 94 million).
    """

    def __init__(self, k: int, m: int, domain: int, seed: int, transform: CodeTransform) -> None:
        super().__init__()
        if transform == "gaussian" and k % 2:
            raise ValueError(f"the gaussian transform pairs its hashes: k must be even, not {k}")
        self.k, self.m, self.transform = k, m, transform
        self.p = next_prime(max(m, domain))
        if self.p * self.p >= EXACT:
            raise ValueError(f"{domain} ids are too many for exact hashing in float64")
        random = np.random.default_rng(seed)
        a, b = random.integers(1, self.p, k), random.integers(0, self.p, k)
        self.register_buffer("a", torch.from_numpy(a.astype(np.float64)), persistent=False)
        self.register_buffer("b", torch.from_numpy(b.astype(np.float64)), persistent=False)

    def hashes(self, ids: Tensor) -> Tensor:
        """Returns the hashes, float64 [n, k], integers in [0, m). ids: int64 [n]."""
        z = ids.double().unsqueeze(1) * self.get_buffer("a")
        z += self.get_buffer("b")
        z = _mod(z, self.p)
        return _mod(z, self.m)

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
