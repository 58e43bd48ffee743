from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.dlrm.precision import Precision
from polyrec.models.embeddings.store import (
    HEAD,
    LEVELS,
    ComputedRows,
    FloatRows,
    bytes_per_row,
    open_rows,
    quantize,
)

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "int8", "int4")


def dequantized(packed: np.ndarray, precision: Precision) -> np.ndarray:
    """Row by row, number by number."""
    out = []
    for row in packed:
        scale = float((row[:2].view(np.uint16).astype(np.uint32) << 16).view(np.float32)[0])  # bf16
        numbers = [int(b) for b in row[HEAD:]]
        if precision == "int4":
            numbers = [half for b in numbers for half in (b & 15, b >> 4)]
        out.append([scale * (q - int(row[2])) for q in numbers])
    return np.array(out, np.float32)


@given(st.integers(0, 10_000), st.sampled_from(PRECISIONS), st.floats(-8, 8))
def test_gathered_rows_are_near_the_originals(seed: int, precision: Precision, magnitude: float) -> None:
    random = np.random.default_rng(seed)
    rows = (random.standard_normal((20, 8)) * 10**magnitude).astype(np.float32)
    rows[0] = 0
    store = open_rows(quantize(torch.from_numpy(rows.copy()), precision), precision)
    assert (store.rows, store.width) == (20, 8)
    index = torch.from_numpy(random.integers(0, 20, 15))
    with torch.inference_mode():
        got = store.gather(index).numpy()
    expected = rows[index.numpy()]
    assert got.dtype == np.float32
    if precision == "fp32":
        np.testing.assert_array_equal(got, expected)
    elif precision == "bf16":
        np.testing.assert_allclose(got, expected, rtol=2**-8)
    else:
        span = np.maximum(expected.max(1), 0) - np.minimum(expected.min(1), 0)
        # half a step for rounding, half for the rounded zero; the scale is rounded up to 8 bits
        step = span / LEVELS[precision] * (1 + 2**-7)
        assert (np.abs(got - expected) <= step[:, None] + 1e-30).all()
        assert (got[(index == 0).numpy()] == 0).all()


@given(st.integers(0, 10_000), st.sampled_from(["int8", "int4"]), st.integers(0, 9))
def test_the_fused_gather_equals_number_by_number(seed: int, precision: Precision, count: int) -> None:
    rows = np.random.default_rng(seed).standard_normal((count, 6)).astype(np.float32)
    packed = quantize(torch.from_numpy(rows), precision)
    with torch.inference_mode():
        got = open_rows(packed, precision).gather(torch.arange(count)).numpy()
    expected = dequantized(packed.numpy(), precision).reshape(count, 6)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_pooling_sums_gathered_rows(precision: Precision) -> None:
    random = np.random.default_rng(0)
    weight = torch.from_numpy(random.standard_normal((30, 4)).astype(np.float32))
    store = open_rows(quantize(weight, precision), precision)
    index = torch.from_numpy(random.integers(0, 30, 12))
    offsets = torch.tensor([0, 0, 5, 7, 12])
    with torch.inference_mode():
        pooled = store.pool(index, offsets).clone()
        rows = store.gather(index).clone()
    expected = torch.stack([rows[a:b].sum(0) for a, b in pairwise(offsets)])
    np.testing.assert_allclose(pooled, expected, atol=1e-5)
    again = ComputedRows(rows).pool(torch.arange(12), offsets)
    np.testing.assert_allclose(again, expected, atol=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_bytes_per_row_are_what_a_store_keeps(precision: Precision) -> None:
    stored = quantize(torch.zeros(5, 16), precision)
    assert stored.element_size() * stored.shape[1] == bytes_per_row(16, precision)


def test_int8_takes_at_most_030_and_int4_018_of_fp32_at_width_16() -> None:
    assert bytes_per_row(16, "int8") / bytes_per_row(16, "fp32") <= 0.30
    assert bytes_per_row(16, "int4") / bytes_per_row(16, "fp32") <= 0.18


def test_odd_widths_cannot_be_int4() -> None:
    with pytest.raises(ValueError, match="is odd"):
        quantize(torch.zeros(2, 3), "int4")


def test_quantising_in_parts_changes_nothing() -> None:
    rows = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(quantize(rows, "int8", rows_at_once=7), quantize(rows, "int8"))


def test_the_gather_buffer_grows_with_the_largest_batch() -> None:
    store = FloatRows(torch.arange(12.0).view(6, 2))
    with torch.inference_mode():
        for size in (1, 5, 2, 6):
            index = torch.arange(size)
            np.testing.assert_array_equal(store.gather(index).numpy(), np.arange(2.0 * size).reshape(-1, 2))
