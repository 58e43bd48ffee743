from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from polyrec.models.data.growing_array import GrowingArrays


def chunk(random: np.random.Generator, name: str, rows: int) -> NDArray[Any]:
    return random.random((rows, 2)) if name == "wide" else random.integers(0, 99, rows).astype(np.int32)


@pytest.mark.parametrize("memory_bytes", [1 << 30, 40, 0])
@given(st.lists(st.tuples(st.sampled_from(["wide", "flat"]), st.integers(0, 5)), max_size=9))
def test_arrays_are_their_chunks_in_order(memory_bytes: int, appended: list[tuple[str, int]]) -> None:
    random = np.random.default_rng(0)
    store = GrowingArrays(memory_bytes)
    chunks: dict[str, list[NDArray[Any]]] = {}
    for name, rows in appended:
        chunks.setdefault(name, []).append(chunk(random, name, rows))
        store.append(name, chunks[name][-1])
    try:
        for name, parts in chunks.items():
            got, expected = store.array(name), np.concatenate(parts)
            assert got.dtype == expected.dtype
            assert np.array_equal(got, expected)
        zeros = store.zeros("zeros", 7)
        zeros[3] = 1
        assert zeros.tolist() == [0, 0, 0, 1, 0, 0, 0]
    finally:
        store.remove()
    assert store.folder is None or not store.folder.exists()


def test_files_are_made_only_when_memory_is_short() -> None:
    store = GrowingArrays(100)
    store.append("a", np.zeros(12))
    assert store.folder is None
    store.append("a", np.zeros(12))
    assert store.folder is not None
    shutil.rmtree(store.folder)
