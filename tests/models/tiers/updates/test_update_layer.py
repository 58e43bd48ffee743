"""A layer replaces exactly the rows that were updated, by their last values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.updates.update_layer import UpdateLayer

FORM = RowFormat(4, "fp32")
TOTAL = 100_000


@pytest.mark.parametrize("count", [1, 2, 3, 50, 3000])
@pytest.mark.parametrize("ordered", [True, False])
def test_rows_of_a_layer_are_those_of_a_dictionary(count: int, ordered: bool) -> None:
    random = np.random.default_rng(count)
    rows = random.choice(TOTAL, count, replace=not ordered).astype(np.int64)
    if ordered:
        rows.sort()
    values = random.normal(size=(count, FORM.width)).astype(np.float32)
    expected = dict(zip(rows.tolist(), values.copy(), strict=True))
    layer = UpdateLayer(FORM, rows, values.view(np.uint8))
    lookups = np.concatenate((rows, rows[::-1], (rows + 1) % TOTAL, random.integers(0, TOTAL, 500)))
    # what the caller does with its arrays afterwards changes nothing
    rows[:], values[:] = 0, 0
    out = torch.full((lookups.size, FORM.width), -1.0)
    replaced = layer.over(lookups, out)
    unchanged = np.full(FORM.width, -1, np.float32)
    wanted = [expected.get(row, unchanged) for row in lookups.tolist()]
    np.testing.assert_array_equal(out.numpy(), np.stack(wanted))
    assert replaced.tolist() == [i for i, row in enumerate(lookups.tolist()) if row in expected]
