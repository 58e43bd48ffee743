from __future__ import annotations

import numpy as np
import pytest

from polyrec.models.tiers.disk.row_index import NOWHERE
from polyrec.models.training.tiers.slots import SlotDirectory


@pytest.mark.parametrize("seed", range(10))
def test_index_finds_the_same_slots_as_a_dictionary(seed: int) -> None:
    """The smallest caches leave rows out of the index."""
    random = np.random.default_rng(seed)
    rows, count = 2000, int(random.integers(8, 300))
    directory, held = SlotDirectory(rows, count), dict[int, int]()
    for step in range(60):
        wanted = random.integers(0, rows, int(random.integers(1, count // 2)))
        found = directory.find(wanted)
        assert found.tolist() == [held.get(int(r), NOWHERE) for r in wanted]
        directory.use(found[found != NOWHERE], step)
        missing = np.unique(wanted[found == NOWHERE])
        if directory.free < missing.size:
            to_evict = directory.to_evict(missing.size - directory.free, step)
            assert np.all(np.diff(directory.row[to_evict]) > 0)
            used = {int(r) for r in wanted}
            for row in directory.row[to_evict].tolist():
                assert row not in used
                del held[row]
            directory.remove(to_evict)
        assert directory.free >= missing.size
        slots = directory.add(missing, step)
        held |= dict(zip(missing.tolist(), slots.tolist(), strict=True))
        assert len(set(held.values())) == len(held) == count - directory.free


def test_rows_are_evicted_in_rounds_and_those_used_again_stay_for_one() -> None:
    directory = SlotDirectory(100, 10)
    slots = directory.add(np.arange(0, 100, 10), 0)
    directory.use(slots[[1, 2]], 1)
    first = directory.to_evict(3, 2)
    assert directory.row[first].tolist() == [0, 30, 40]
    directory.remove(first)
    directory.add(np.array([5, 95]), 2)
    assert directory.row[directory.to_evict(4, 3)].tolist() == [50, 60, 70, 80]
    # over the end of the file, and back to rows that had stayed
    assert sorted(directory.row[directory.to_evict(9, 3)].tolist()) == [5, 10, 20, 50, 60, 70, 80, 90, 95]


def test_rows_of_steps_to_come_stay() -> None:
    directory = SlotDirectory(100, 10)
    directory.add(np.arange(5), 0)
    directory.add(np.arange(5, 10), 1)
    assert directory.row[directory.to_evict(10, 1)].tolist() == [0, 1, 2, 3, 4]
    assert directory.to_evict(10, 0).size == 0
