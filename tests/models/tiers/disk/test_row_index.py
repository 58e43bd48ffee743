from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.tiers.disk.row_index import INDEX_BYTES, NOWHERE, RecentRows, RowIndex


@given(st.integers(0, 2**32))
def test_keys_are_found_in_the_slots_of_a_dictionary(seed: int) -> None:
    random = np.random.default_rng(seed)
    keys, slots = int(random.integers(1, 400)), int(random.integers(1, 100))
    index = RowIndex(keys, slots, slots)
    slot_of_key: dict[int, int] = {}
    for _ in range(20):
        wanted = random.integers(0, keys, int(random.integers(0, 60)))
        expected = [slot_of_key.get(key, NOWHERE) for key in wanted.tolist()]
        assert index.find(wanted).tolist() == expected
        gone = random.integers(0, slots, int(random.integers(0, slots + 1)))
        index.remove(gone)
        slot_of_key = {k: s for k, s in slot_of_key.items() if s not in gone}
        free = np.setdiff1d(np.arange(slots), list(slot_of_key.values()))
        new = np.setdiff1d(random.permutation(keys), list(slot_of_key))[: free.size]
        free = random.permutation(free)[: new.size]
        stored = index.put(new, free)
        slot_of_key |= dict(zip(new[stored].tolist(), free[stored].tolist(), strict=True))
        key = {s: k for k, s in slot_of_key.items()}
        assert index.key(np.arange(slots)).tolist() == [key.get(s, NOWHERE) for s in range(slots)]


def test_nearly_every_key_finds_room_in_a_full_index() -> None:
    random = np.random.default_rng(0)
    index = RowIndex(10**6, 20_000, 20_000)
    keys = random.permutation(10**6)[:20_000]
    assert index.put(keys, np.arange(20_000)).mean() > 0.99
    for _ in range(20):
        gone = random.permutation(20_000)[:2000]
        index.remove(gone)
        new = random.permutation(10**6)[:4000]
        new = new[index.find(new) == NOWHERE][: gone.size]
        assert index.put(new, gone[: new.size]).mean() > 0.995


def test_the_index_has_the_documented_size() -> None:
    assert RowIndex(10**6, 60_000, 60_000).nbytes == 60_000 * INDEX_BYTES


def test_the_latest_rows_are_remembered() -> None:
    recent = RecentRows(10**6, 800)
    order = np.random.default_rng(0).permutation(10**6)[:5000]
    for start in range(0, 5000, 50):
        recent.add(order[start : start + 50])
        assert recent.has(order[start : start + 50]).mean() > 0.9
    assert recent.has(order[-200:]).mean() > 0.9
    assert not recent.has(order[:2000]).any()
