from __future__ import annotations

import numpy as np
import pytest
import torch

from polyrec.models.tiers.remote.fetched import FetchedRows


@pytest.mark.parametrize("seed", range(5))
def test_fetched_rows_are_copied_to_where_they_are_looked_up(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 40))
    parts = []
    value_of: dict[int, bytes] = {}
    lost_of: dict[int, bool] = {}
    for _ in range(random.integers(1, 4)):
        rows = random.integers(0, 100, count)
        values = random.integers(0, 256, (count, 8)).astype(np.uint8)
        lost = random.random(count) < 0.3
        parts.append(FetchedRows.from_unsorted(rows, values, lost))
        for row, value, one in zip(rows.tolist(), values, lost.tolist(), strict=True):
            # the last one counts, but no lost one before one that came
            if not one or lost_of.get(row, True):
                value_of[row], lost_of[row] = value.tobytes(), one
    fetched = FetchedRows.merged(parts)
    assert fetched.rows.tolist() == sorted(value_of)
    assert fetched.lost.tolist() == [lost_of[row] for row in sorted(lost_of)]
    wanted = random.integers(0, 120, 200)
    found, place = fetched.find(wanted)
    assert found.tolist() == [row in value_of for row in wanted.tolist()]
    out = torch.zeros((wanted.size, 2), dtype=torch.float32)
    fetched.copy(place, np.flatnonzero(found), out)
    expected = [value_of.get(row, bytes(8)) for row in wanted.tolist()]
    assert [row.tobytes() for row in out.view(torch.uint8).numpy()] == expected
