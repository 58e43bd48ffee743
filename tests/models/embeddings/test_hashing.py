from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.embeddings.hashing import (
    MAX_TABULATED,
    CodeTransform,
    PartHashes,
    UniversalHashes,
    next_prime,
)


@given(
    st.integers(1, 90_000_000) | st.integers(90_000_000, 2**42 - 100),
    st.integers(2, 2_000_000),
    st.integers(0, 1000),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20),
)
def test_hashes_equal_pythons_integers(domain: int, m: int, seed: int, places: list[float]) -> None:
    hashes = UniversalHashes(k=6, m=m, domain=domain, seed=seed, transform="uniform")
    ids = [int(p * domain) for p in places] + [0, domain - 1]
    got = hashes.hashes(torch.tensor(ids)).numpy()
    a, b = (hashes.get_buffer(n).numpy().astype(np.int64).tolist() for n in "ab")
    assert all(1 <= x < hashes.p for x in a)
    assert all(0 <= x < hashes.p for x in b)
    expected = [[((a[i] * x + b[i]) % hashes.p) % m for i in range(6)] for x in ids]
    np.testing.assert_array_equal(got, expected)


@given(st.integers(1, 90_000_000), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20))
def test_floats_and_integers_give_the_same_hashes(domain: int, places: list[float]) -> None:
    hashes = UniversalHashes(k=6, m=1000, domain=domain, seed=1, transform="uniform")
    ids = torch.tensor([int(p * domain) for p in places])
    in_floats = hashes.hashes(ids)
    hashes.in_floats = False
    hashes.a, hashes.b = hashes.get_buffer("a").long(), hashes.get_buffer("b").long()
    assert torch.equal(hashes.hashes(ids), in_floats)


@given(
    st.integers(1, 5000) | st.integers(5000, MAX_TABULATED // 2),
    st.integers(2, 2_000_000),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20),
)
def test_tabulated_parts_give_the_same_hashes(domain: int, m: int, places: list[float]) -> None:
    reference = UniversalHashes(k=6, m=m, domain=domain, seed=3, transform="uniform")
    ids = torch.tensor([int(p * domain) for p in places] + [0, domain - 1])
    tables = PartHashes(6, m, reference.p, domain, 3)
    np.testing.assert_array_equal(tables.hashes(ids.numpy()), reference.hashes(ids).numpy())


def test_codes_of_tabulated_hashes_are_those_of_computed_ones() -> None:
    hashes = UniversalHashes(k=100, m=1_000_000, domain=3_000_000, seed=1, transform="uniform")
    ids = torch.randint(0, 3_000_000, (1000,), generator=torch.Generator().manual_seed(0))
    expected = hashes.hashes(ids) * (2.0 / (hashes.m - 1)) - 1.0
    np.testing.assert_allclose(hashes(ids), expected, rtol=0, atol=1.3e-7)
    assert hashes(ids[:0]).shape == (0, 100)


@pytest.mark.gpu
@pytest.mark.parametrize("transform", ["uniform", "gaussian"])
@pytest.mark.parametrize("domain", [50_000, 40_000_000, 2**33])
def test_codes_on_a_gpu_are_those_of_the_cpu(domain: int, transform: CodeTransform) -> None:
    here = UniversalHashes(k=8, m=1_000_000, domain=domain, seed=5, transform=transform)
    there = UniversalHashes(k=8, m=1_000_000, domain=domain, seed=5, transform=transform).cuda()
    a, b = (here.get_buffer(n).numpy().astype(np.int64).tolist() for n in "ab")
    # ids whose products are exact multiples of p, where a quotient that is one too small shows
    zeros = [pow(x, -1, here.p) * (here.p - y) % here.p for x, y in zip(a, b, strict=True)]
    random = torch.randint(0, domain, (20_000,), generator=torch.Generator().manual_seed(0))
    ids = torch.cat((torch.tensor([x for x in zeros if x < domain] + [0, domain - 1]), random))
    assert torch.equal(there.hashes(ids.cuda()).cpu(), here.hashes(ids))
    torch.testing.assert_close(there(ids.cuda()).cpu(), here(ids), atol=1e-6, rtol=1e-5)


def test_a_domain_that_integers_cannot_hash_exactly_is_rejected() -> None:
    with pytest.raises(ValueError, match="too many for exact hashing"):
        UniversalHashes(k=2, m=100, domain=2**42, seed=0, transform="uniform")


@pytest.mark.parametrize(("transform", "deviation"), [("uniform", 3**-0.5), ("gaussian", 1.0)])
def test_codes_have_the_moments_of_their_distribution(transform: str, deviation: float) -> None:
    hashes = UniversalHashes(k=64, m=1_000_000, domain=5000, seed=1, transform=transform)
    codes = hashes(torch.arange(5000)).numpy()
    assert codes.dtype == np.float32
    assert np.isfinite(codes).all()
    assert abs(codes.mean()) < 0.02
    assert abs(codes.std() - deviation) < 0.02
    if transform == "uniform":
        assert codes.min() >= -1
        assert codes.max() <= 1


def test_the_seed_decides_the_functions() -> None:
    ids = torch.arange(10)
    one, same, other = (UniversalHashes(8, 1000, 10, seed, "uniform")(ids) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_gaussian_codes_come_in_pairs() -> None:
    with pytest.raises(ValueError, match="k must be even"):
        UniversalHashes(3, 1000, 10, 0, "gaussian")


@pytest.mark.parametrize(("n", "prime"), [(1, 2), (2, 3), (13, 17), (1_000_000, 1_000_003)])
def test_next_prime(n: int, prime: int) -> None:
    assert next_prime(n) == prime
