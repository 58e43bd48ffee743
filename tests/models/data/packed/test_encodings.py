from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from polyrec.models.data.packed.encodings import choose_encodings

RANDOM = np.random.default_rng(0)


def test_each_column_gets_the_encoding_that_is_smallest() -> None:
    rows = 5000
    city = pa.array(RANDOM.choice([f"city {i}" for i in range(30)], rows))
    item = pa.array([f"item-{i}" for i in RANDOM.permutation(10**6)[:rows]])
    table = pa.table(
        {
            "city": city,
            "time": pa.array(np.arange(rows) * 30 + 1_700_000_000),
            "item": item,
            "price": pa.array(RANDOM.random(rows).astype(np.float32)),
            "lists": pa.ListArray.from_arrays(pa.array(np.arange(0, rows + 1, 5, np.int32)), item).take(
                pa.array(np.arange(rows) % (rows // 5))
            ),
        }
    )
    found = choose_encodings(table)
    assert "city" in found.dictionary
    assert found.others["time"] == "DELTA_BINARY_PACKED"
    assert found.others["item"].startswith("DELTA_")
    assert found.others["price"] == "BYTE_STREAM_SPLIT"
    assert "lists.list.element" in {*found.dictionary, *found.others}


def test_data_with_these_encodings_are_read_back() -> None:
    nested = pa.array([[[1, 2], []], [], None, [[3], None]] * 50, pa.list_(pa.list_(pa.int64())))
    table = pa.table({"nested": nested, "empty": pa.array([None] * 200, pa.string())})
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, **choose_encodings(table).options()) as file:
        file.write_table(table)
    assert pq.read_table(pa.BufferReader(sink.getvalue())).equals(table)
