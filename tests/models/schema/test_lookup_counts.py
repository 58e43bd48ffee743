from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.schema.encoder import Encoder, Standard
from polyrec.models.schema.lookup_counts import LookupCounts
from polyrec.models.schema.schema import ROLES, Schema
from polyrec.models.schema.vocabulary import Vocabulary

Row = dict[str, Any]
KNOWN = ["a", "b", "z"]


def encoder(schema: Schema) -> Encoder:
    """Vocabularies of a few values, in an order other than that of the ids."""
    vocabularies = {}
    for table, (head, *_) in schema.tables.items():
        values = None if head.cardinality else pa.array(KNOWN if head.type == "string" else [5, 0, 2])
        rows = (head.cardinality or 3) + 2
        vocabularies[table] = Vocabulary(
            table, head.type, rows - 2, np.arange(rows)[::-1].copy(), np.zeros(rows, np.int64), values
        )
    return Encoder(schema, vocabularies, {d.name: Standard() for d in schema.dense})


def reference(encoder: Encoder, rows: Sequence[Row]) -> dict[str, Counter[int]]:
    """Ids looked up, one value at a time."""
    found: dict[str, Counter[int]] = {t: Counter() for t in encoder.vocabularies}
    for row in rows:
        for f in encoder.schema.categorical:
            v = encoder.vocabularies[f.table_name]
            known = range(v.size) if v.values is None else v.values.to_pylist()
            values = (row[f.name] or ())[: f.max_length] if f.multi else (row[f.name],)
            for value in values:
                is_known = value is not None and value in known
                id = list(known).index(value) if is_known else v.missing_id if value is None else v.oov_id
                found[f.table_name][id] += 1
    return found


@given(data=st.data())
def test_counts_are_those_of_the_values(
    data: st.DataObject,
    small: Schema,
    small_rows: Callable[..., st.SearchStrategy[Row]],
    arrow: Callable[[Sequence[Row]], pa.Table],
) -> None:
    rows = data.draw(st.lists(small_rows(), min_size=1, max_size=8))
    made = encoder(small)
    table = arrow(rows).combine_chunks().to_batches()[0]
    by_block, by_value = LookupCounts(made), LookupCounts(made)
    for role in ROLES:
        by_block.add_block(role, made.arrow_block(role, table))
    for f in small.categorical:
        column = table.column(f.name)
        if f.multi:
            column = pa.array(
                [one for row in rows for one in (row[f.name] or ())[: f.max_length]], column.type.value_type
            )
        by_value.add_values(f, column, len(rows))
    for name, counter in reference(made, rows).items():
        expected = [counter[i] for i in range(made.vocabularies[name].rows)]
        assert by_block.by_id()[name].tolist() == expected
        assert by_value.by_id()[name].tolist() == expected
    assert by_value.unknown == 0
    assert by_block.rows() == by_value.rows() == {"context": len(rows), "candidate": len(rows)}


def test_ids_without_a_row_are_counted_apart(small: Schema) -> None:
    counts = LookupCounts(encoder(small))
    place = next(f for f in small.categorical if f.name == "place")
    counts.add_ids(place, np.array([0, 0, 5, 6, -1, 2**40]), rows=6)
    assert counts.by_id()["place"].tolist() == [2, 0, 0, 0, 0, 1]
    assert counts.unknown == 3


def test_values_that_a_table_refuses_are_counted_apart(small: Schema) -> None:
    made = encoder(small)
    refusing = Vocabulary(
        "place", "integer", 4, np.arange(4), np.zeros(4, np.int64), specials=False, oov="refuse"
    )
    made.vocabularies["place"] = refusing
    counts = LookupCounts(made)
    place = next(f for f in small.categorical if f.name == "place")
    counts.add_values(place, pa.array([3, 3, None, 9]), rows=4)
    assert counts.by_id()["place"].tolist() == [0, 0, 0, 2]
    assert counts.unknown == 2


@pytest.mark.parametrize("rows", [1, 5])
def test_a_shared_context_counts_once(small: Schema, rows: int) -> None:
    made = encoder(small)
    counts = LookupCounts(made)
    columns: dict[str, list[Any]] = {"user": ["a"], "last": ["b"], "tags": [[]], "history": [[]]}
    counts.add_block("context", made.block("context", columns, 1))
    items = {"item": ["b"] * rows, "place": [1] * rows, "code": [0] * rows}
    counts.add_block("candidate", made.block("candidate", items, rows))
    assert counts.by_id()["user"].sum() == 1
    assert counts.rows() == {"context": 1, "candidate": rows}
    assert counts.by_id()["item"].tolist() == [0, 1 + rows, 0, 0, 0]
