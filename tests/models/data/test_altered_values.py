from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from polyrec.models.data.altered_values import AlteredValues
from polyrec.models.data.encoded import encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, TRAIN, fit_splitter
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.popularity import calibrate
from polyrec.models.schema.schema import Schema
from polyrec.models.training.stream import StreamedRows

SCHEMA = Schema.model_validate(
    {
        "name": "shop",
        "categorical": [
            {"name": "user", "role": "context"},
            {"name": "category", "type": "integer", "cardinality": 3},
            {"name": "tags", "pooling": "mean", "max_length": 2},
        ],
        "label": {"column": "clicked"},
        "split": {"rule": "column", "columns": ["fold"]},
    }
)
ROWS = {
    "user": ["a", "b", "a", "new"],
    "category": [0, 3, -1, None],
    "tags": [["x"], ["x", "y", "z", "w"], [None, "y", "x"], None],
    "clicked": [1, 0, 1, 0],
    "fold": ["train", "train", "train", "test"],
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    parquet.write_table(pa.table(ROWS), tmp_path / "clicks.parquet")
    return tmp_path / "clicks.parquet"


def encoder_of(data: Path) -> Encoder:
    reader = open_data(data, SCHEMA)
    found = calibrate(reader, SCHEMA, fit_splitter(reader, SCHEMA))
    return Encoder(SCHEMA, found.vocabularies, found.standards)


def test_cut_lists_nulls_and_unknown_values_are_counted_by_feature_and_split(data: Path) -> None:
    reader, encoder = open_data(data, SCHEMA), encoder_of(data)
    splitter = fit_splitter(reader, SCHEMA)
    with encode(reader, encoder, splitter, (TRAIN,)) as rows:
        assert rows.altered.record() == {
            "category": {"values": 3, "unknown": 2},
            "tags": {"values": 7, "cut_lists": 2, "dropped": 3, "null_in_lists": 1},
        }
    with encode(reader, encoder, splitter, (TEST,)) as rows:
        assert rows.altered.record() == {"user": {"values": 1, "unknown": 1}}
        assert rows.altered.warnings(SCHEMA.categorical) == []  # a new user is no mistake


def test_warnings_name_the_feature_the_counts_and_the_limit(data: Path) -> None:
    reader = open_data(data, SCHEMA)
    with encode(reader, encoder_of(data), fit_splitter(reader, SCHEMA)) as rows:
        found = rows.altered
    stored = {"altered_values": {"training": found.record(), "test": found.record()}}
    assert AlteredValues.of_training({}).warnings(SCHEMA.categorical) == []
    assert AlteredValues.of_training(stored).warnings(SCHEMA.categorical) == [
        "feature 'category': 4 of 6 values are outside 0 ... 2, its cardinality, and were read as unknown",
        "feature 'tags': 4 lists were cut to max_length 2 and lost 6 of 14 values; "
        "a server refuses such lists",
        "feature 'tags': 2 nulls in lists were read as missing values, "
        "which lists in requests in JSON cannot have",
    ]


def test_windows_are_counted_once_however_many_passes_read_them(data: Path) -> None:
    reader, encoder = open_data(data, SCHEMA), encoder_of(data)
    splitter = fit_splitter(reader, SCHEMA)
    stream = StreamedRows(reader, encoder, splitter, (TRAIN,), 2, lambda _: None)
    for _ in range(2):
        assert sum(window.size for window in stream.windows()) == 3
    with encode(reader, encoder, splitter, (TRAIN,)) as rows:
        assert stream.altered.record() == rows.altered.record()
        assert np.array_equal(rows.select(TRAIN), np.arange(3))
