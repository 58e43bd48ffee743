from __future__ import annotations

import numpy as np
import pytest

from polyrec.models.tiers.updates.kept_values import KeptValues


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_the_file_are_those_that_a_dictionary_gives(seed: int) -> None:
    random = np.random.default_rng(seed)
    kept, next_slot = KeptValues(), 0
    slot_of_id: dict[int, int] = {}
    updated_at: dict[int, int] = {}
    for number in range(1, 60):
        most = int(10 ** random.uniform(0, 5))
        ids = np.unique(random.integers(0, most, random.integers(1, 300)))
        # rows of other tables are in the same file
        next_slot += int(random.integers(0, 3))
        slots, new = kept.put(ids, number, next_slot)
        for i in ids.tolist():
            if i not in slot_of_id:
                slot_of_id[i] = next_slot
                next_slot += 1
            updated_at[i] = number
        assert slots.tolist() == [slot_of_id[i] for i in ids.tolist()]
        assert kept.ids.size == len(slot_of_id)
        assert kept.ids[kept.ids.size - new :].tolist() == list(slot_of_id)[len(slot_of_id) - new :]
    assert kept.ids.tolist() == list(slot_of_id)
    assert kept.slots.tolist() == list(slot_of_id.values())
    assert kept.at.tolist() == [updated_at[i] for i in slot_of_id]
