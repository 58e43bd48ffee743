from __future__ import annotations

import numpy as np
import pyarrow as pa

from polyrec.models.schema.dense_transform import Standard
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import Schema
from polyrec.models.schema.vocabulary import Vocabulary
from polyrec.server.http.docs.example_rows import CANDIDATES, example_rows, frequent_ids, value_of


def vocabulary(values: list[str] | None, ranks: list[int], specials: bool = True) -> Vocabulary:
    size = len(ranks) - 2 * specials
    array = None if values is None else pa.array(values, pa.string())
    counts = np.zeros(len(ranks), np.int64)
    kind = "integer" if values is None else "string"
    return Vocabulary("t", kind, size, np.array(ranks), counts, array, specials)


def test_values_come_by_falling_frequency_and_special_rows_are_left_out() -> None:
    known = vocabulary(["a", "b", "c"], [4, 1, 2, 0, 3])
    assert frequent_ids(known, 2) == [1, 2]
    assert frequent_ids(known, 9) == [1, 2, 0]
    assert [value_of(known, i) for i in (1, 2, 3)] == ["b", "c", None]
    assert frequent_ids(vocabulary(None, [1, 0], specials=False), 1) == [1]
    assert value_of(vocabulary(None, [1, 0], specials=False), 1) == 1
    assert frequent_ids(vocabulary([], [0, 1]), 3) == []


def test_rows_of_an_empty_vocabulary_have_missing_values() -> None:
    price = {"name": "price", "transform": ["log1p", "standardise"]}
    schema = Schema.model_validate(
        {
            "name": "shop",
            "dense": [{"name": "age", "role": "context"}, price],
            "categorical": [
                {"name": "user", "role": "context"},
                {"name": "tags", "role": "context", "table": "user", "pooling": "sum"},
                {"name": "item", "type": "integer", "cardinality": 2},
            ],
            "label": {"column": "click"},
            "split": {"rule": "hash", "columns": ["user"]},
        }
    )
    vocabularies = {"user": vocabulary([], [0, 1]), "item": vocabulary(None, [0, 1, 2, 3])}
    rows = example_rows(Encoder(schema, vocabularies, {"price": Standard(3.0, 1.0)}))
    assert rows.context == {"age": 1.0, "user": None, "tags": []}
    assert rows.candidates == {"price": [11.2, 19.1, 32.1], "item": [0, 1, 0]}
    assert rows.ids == {"user": [0], "tags": [[]], "item": [0, 1, 0]}
    assert len(rows.rows) == CANDIDATES
    assert rows.rows[1] == {"age": 1.0, "user": None, "tags": [], "price": 19.1, "item": 1}
