"""Maps an id to k numbers, the input of a DHE decoder (universal hashes and their transforms).

    h_i(x) = ((a_i x + b_i) mod p) mod m,   a_i in [1, p-1], b_i in [0, p-1], p prime

(Kang et al., Learning to embed categorical features without embedding tables, KDD'21, section 4.1).
The uniform transform maps a hash to [-1, 1]. The Gaussian transform maps pairs of uniform numbers to pairs of
normal ones (Box-Muller).

Results are exact. Up to about 94 million ids, float64 suffices, because every product is below 2^53. Beyond
that, 64-bit integers are used, whose division is slower, with ids split in two parts so that no product
exceeds 2^63.

On a CPU, hashes are looked up instead of multiplied (`PartHashes`): an id is a sum of parts of a few bits,
and its hash before `mod m` is the sum mod p of the hashes of its parts, which are few enough to tabulate.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from polyrec.models.schema.batch import F32, I64

EXACT = 2**53
PART_BITS = 21
MAX_IDS = 2 ** (2 * PART_BITS)
CACHED = 32_768
LAUNCHED = 2**24
"""Numbers computed at once: CACHED on a CPU, LAUNCHED on other devices."""
MAX_TABULATED = 2**31

CodeTransform = Literal["uniform", "gaussian"]
VARIANCE: dict[CodeTransform, float] = {"uniform": 1 / 3, "gaussian": 1.0}
"""Variance of the codes of each transform."""


class UniversalHashes(nn.Module):
    """k hash functions, drawn from a seed, with values in [0, m).

    domain: ids are in [0, domain); p is the first prime above max(m, domain).
    reach: upper bound of ids after tables have grown, at most p (default: domain). It does not change p.
    Raises ValueError if products would not be exact (domain above MAX_IDS, 4.4e12).
    """

    def __init__(
        self, k: int, m: int, domain: int, seed: int, transform: CodeTransform, reach: int | None = None
    ) -> None:
        super().__init__()
        if transform == "gaussian" and k % 2:
            raise ValueError(f"the gaussian transform pairs its hashes: k must be even, not {k}")
        self.k, self.m, self.domain, self.seed, self.transform = k, m, domain, seed, transform
        self.p = next_prime(max(m, domain))
        self.reach = min(domain if reach is None else reach, self.p)
        if self.p >= MAX_IDS:
            raise ValueError(f"{domain} ids are too many for exact hashing in 64 bits")
        self.in_floats = self.p * self.p < EXACT
        a, b = coefficients(k, self.p, seed)
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
        """Computes a x, x = high 2^21 + low, as (a high mod p) 2^21 + a low; both terms are below 2^63."""
        a, low = self.get_buffer("a"), ids.unsqueeze(1) & (2**PART_BITS - 1)
        z = (ids.unsqueeze(1) >> PART_BITS) * a % self.p
        z = ((z << PART_BITS) % self.p + a * low % self.p + self.get_buffer("b")) % self.p
        codes: Tensor = (z % self.m).double()
        return codes

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the transformed hashes, float32 [n, k]. ids: int64 [n].

        Works in chunks. On a CPU they fit the second-level cache, since each step passes over all numbers; on
        other devices they take 128 MiB, since each step is a launch.
        """
        if ids.device.type == "cpu" and self.transform == "uniform" and self.p < MAX_TABULATED:
            return torch.from_numpy(
                tabulated(self.k, self.m, self.p, self.reach, self.seed).codes(ids.numpy())
            )
        at_once = CACHED if ids.device.type == "cpu" else LAUNCHED
        parts = [self._codes(part) for part in torch.split(ids, max(1, at_once // self.k))]
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


class PartHashes:
    """Exact hashes of ids in 32-bit integers, from one lookup table per part of an id's bits.

    With x = x1 + x2, a x + b mod p is the sum mod p of (a x1 + b) mod p and a x2 mod p. Tables are uint32
    [2**bits, k]. domain: ids are in [0, domain). Sums must stay below 2^32, so parts * p must too.
    """

    def __init__(self, k: int, m: int, p: int, domain: int, seed: int) -> None:
        self._k, self._m, self._p = k, m, p
        a, b = coefficients(k, p, seed)
        bits = max(1, (domain - 1).bit_length())
        parts = 2
        self._bits = -(-bits // parts)
        values = np.arange(2**self._bits, dtype=np.int64)[:, None]
        self._tables: list[NDArray[np.uint32]] = []
        for part in range(parts):
            used = min(values.size, (domain - 1 >> part * self._bits) + 1)
            high = (values[:used] << part * self._bits) % p
            self._tables.append(((high * a + (b if part == 0 else 0)) % p).astype(np.uint32))

    def codes(self, ids: I64) -> F32:
        """Returns the hashes transformed to [-1, 1], float32 [n, k]."""
        out = np.empty((ids.size, self._k), np.float32)
        step = max(1, CACHED // self._k)
        z, t = (np.empty((min(step, ids.size), self._k), np.uint32) for _ in range(2))
        for first in range(0, ids.size, step):
            part = out[first : first + step]
            hashed = self._hashes(ids[first : first + step], z[: len(part)], t[: len(part)])
            np.copyto(part, hashed.view(np.int32), casting="same_kind")
            part *= np.float32(2.0 / (self._m - 1))
            part -= np.float32(1.0)
        return out

    def hashes(self, ids: I64) -> NDArray[np.uint32]:
        """Returns the hashes, uint32 [n, k], in [0, m). ids: int64 [n]."""
        shape = (ids.size, self._k)
        return self._hashes(ids, np.empty(shape, np.uint32), np.empty(shape, np.uint32))

    def _hashes(self, ids: I64, z: NDArray[np.uint32], t: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Computes hashes into z, using t as scratch space."""
        mask = 2**self._bits - 1
        self._tables[0].take(ids & mask, axis=0, out=z, mode="clip")
        self._tables[1].take(ids >> self._bits, axis=0, out=t, mode="clip")
        z += t
        _subtract_if_above(z, self._p, t)
        if self._p <= 2 * self._m:
            _subtract_if_above(z, self._m, t)
        else:
            np.floor_divide(z, self._m, out=t)
            t *= np.uint32(self._m)
            z -= t
        return z


def _subtract_if_above(z: NDArray[np.uint32], n: int, t: NDArray[np.uint32]) -> None:
    """Computes z mod n in place, for z < 2n and n <= 2^31. Where z < n, z - n wraps around to above z."""
    np.subtract(z, np.uint32(n), out=t)
    np.minimum(z, t, out=z)


@lru_cache(maxsize=16)
def tabulated(k: int, m: int, p: int, domain: int, seed: int) -> PartHashes:
    """Returns the lookup tables of these hashes, shared by all stages of a process."""
    return PartHashes(k, m, p, domain, seed)


def coefficients(k: int, p: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draws the coefficients a and b of k hashes, int64 [k] each."""
    random = np.random.default_rng(seed)
    return random.integers(1, p, k), random.integers(0, p, k)


def _mod(z: Tensor, n: int) -> Tensor:
    """Computes z mod n in place, for integers 0 <= z < 2^53, for which the quotient is exact."""
    if z.is_cuda:
        # CUDA divides by a number as a product with its reciprocal, whose last bit may be wrong
        return z.fmod_(n)
    return z.sub_(torch.div(z, n).floor_().mul_(n))


def next_prime(n: int) -> int:
    """Returns the smallest prime above n."""
    candidate = n + 1
    while not _is_prime(candidate):
        candidate += 1
    return candidate


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))
