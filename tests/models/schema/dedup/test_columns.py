from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.schema.dedup.columns import block_columns, columns_of
from polyrec.models.schema.dedup.distinct import Column, Jagged
from tests.models.random_batches import random_batch, random_block, random_schema, random_table_rows


def cell(column: Column, row: int) -> Any:
    if isinstance(column, Jagged):
        return tuple(column.values[column.offsets[row] : column.offsets[row + 1]].tolist())
    return column[row].tobytes()


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 8))
def test_columns_hold_every_feature_of_every_row_with_contexts_repeated(
    seed: int, rows: int, contexts: int
) -> None:
    random = np.random.default_rng(seed)
    schema = random_schema(random)
    batch = random_batch(random, schema, random_table_rows(random, schema), rows, contexts=contexts)
    assert batch.context_row is not None
    columns = columns_of(batch, schema)
    for row in range(rows):
        for block, layout, own in (
            (batch.context, schema.context, int(batch.context_row[row])),
            (batch.candidate, schema.candidate, row),
        ):
            for i, dense in enumerate(layout.dense):
                assert columns[dense.name][row] == block.dense[own, i]
            for i, single in enumerate(layout.singles):
                assert columns[single.name][row] == block.ranks[own, i]
            for i, bag in enumerate(layout.bags):
                begin, end = block.bag_offsets[own * len(layout.bags) + i :][:2]
                assert cell(columns[bag.name], row) == tuple(block.bag_values[begin:end].tolist())


@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_rows_of_a_block_are_equal_where_all_its_columns_are(seed: int, rows: int) -> None:
    random = np.random.default_rng(seed)
    schema = random_schema(random)
    few = random_block(random, schema, "context", random_table_rows(random, schema), 4)
    which = random.integers(0, 4, rows)
    columns, drawn = block_columns(few.take(which)), block_columns(few)
    for row in range(rows):
        assert [cell(c, row) for c in columns] == [cell(c, int(which[row])) for c in drawn]
