"""Rows of ids in the log are the values that they stand for: encoded again, they are the same batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.bundle.manifest import VOCABULARY
from polyrec.models.errors import DataError
from polyrec.models.schema.batch import I64, Block
from polyrec.models.schema.schema import Categorical, Role, Schema
from polyrec.server.codecs.rows import Bags, RankedTensors, RoleTensors, Tensors
from polyrec.server.prediction_log.id_values import IdValues, TableValues, ValuesByTable, load_values
from polyrec.server.prediction_log.log import vocabulary_file
from polyrec.server.prediction_log.records import IdRows, Prediction, decode, pack
from polyrec.server.record_pipe import unframe


class RandomRows:
    """Random ids of values, and of the missing row, in every form."""

    def __init__(self, bundle: Bundle, seed: int) -> None:
        self._bundle = bundle
        self._random = np.random.default_rng(seed)

    def _ids(self, feature: Categorical, n: int) -> I64:
        vocabulary = self._bundle.encoder.vocabulary(feature)
        return self._random.integers(0, vocabulary.size + vocabulary.specials, n)

    def of_role(self, role: Role | None, rows: int) -> RoleTensors:
        """role: None for the features of both, as plain rows have them."""
        schema = self._bundle.manifest.schema_
        dense = [d for d in schema.dense if role in (None, d.role)]
        numbers = self._random.normal(size=(rows, len(dense))).astype(np.float32)
        features = [f for f in schema.categorical if role in (None, f.role)]
        columns = [self._ids(f, rows) for f in features if not f.multi]
        bags: Bags = {}
        for f in features:
            if f.multi:
                lengths = self._random.integers(0, 4, rows)
                bags = {**bags, f.name: (self._ids(f, int(lengths.sum())), lengths)}
        return RoleTensors(numbers, np.stack(columns, 1), bags)

    def plain(self, lengths: list[int]) -> Tensors:
        found = self.of_role(None, sum(lengths))
        return Tensors(found.dense, found.sparse, found.bags, sum(lengths), None, np.array(lengths))

    def ranking(self, lengths: list[int]) -> RankedTensors:
        context, candidate = self.of_role("context", len(lengths)), self.of_role("candidate", sum(lengths))
        row = np.repeat(np.arange(len(lengths)), lengths)
        return RankedTensors(context, candidate, row, None, np.array(lengths))


def values_of(bundle: Bundle) -> ValuesByTable:
    return {t: TableValues(v.size, v.values) for t, v in bundle.encoder.vocabularies.items()}


def sent(rows: Tensors | RankedTensors) -> Tensors | RankedTensors:
    """The rows as the writer gets them."""
    framed = pack(Prediction("r", 1, "table@cpu", "v", None, b"", IdRows.from_rows(rows)))
    record = decode(*unframe(bytearray(framed)))
    assert isinstance(record, Prediction)
    assert isinstance(record.rows, IdRows)
    return record.rows.read()


def assert_equal(found: Block, expected: Block) -> None:
    np.testing.assert_array_equal(found.ranks, expected.ranks)
    np.testing.assert_array_equal(found.bag_values, expected.bag_values)
    np.testing.assert_array_equal(found.bag_offsets, expected.bag_offsets)
    np.testing.assert_allclose(found.dense, expected.dense, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("form", ["plain", "ranking"])
def test_values_of_ids_are_encoded_as_the_ids_are(bundle: Bundle, form: str, seed: int) -> None:
    random = RandomRows(bundle, seed)
    lengths = [5, 1, 9]
    rows = random.plain(lengths) if form == "plain" else random.ranking(lengths)
    columns = IdValues(bundle.manifest.schema_).columns(sent(rows), values_of(bundle))
    assert columns.group == [0] * 5 + [1] + [2] * 9
    found, expected = columns.encode(bundle.encoder), rows.encode(bundle.encoder)
    assert_equal(found.context, expected.context)
    assert_equal(found.candidate, expected.candidate)
    np.testing.assert_array_equal(found.context_row, expected.context_row)


@pytest.mark.parametrize("form", ["plain", "ranking"])
def test_rows_of_one_request_are_one_group(bundle: Bundle, form: str) -> None:
    random = RandomRows(bundle, 0)
    rows = replace(random.plain([4]) if form == "plain" else random.ranking([4]), request_lengths=None)
    columns = IdValues(bundle.manifest.schema_).columns(sent(rows), values_of(bundle))
    assert columns.group == [0] * 4


def test_an_id_of_no_value_is_logged_as_missing(bundle: Bundle) -> None:
    schema: Schema = bundle.manifest.schema_
    rows = RandomRows(bundle, 0).ranking([3])
    item = [f.name for f in schema.candidate.singles].index("item")
    vocabulary = bundle.encoder.vocabulary(schema.candidate.singles[item])
    rows.candidate.sparse[:, item] = [0, vocabulary.missing_id, vocabulary.oov_id]
    columns = IdValues(schema).columns(rows, values_of(bundle))
    values = columns.candidate[schema.candidate.names.index("item")]
    assert vocabulary.values is not None
    assert values == [vocabulary.values[0].as_py(), None, None]


def test_the_vocabulary_is_that_of_the_bundle_that_answered(bundle: Bundle, tmp_path: Path) -> None:
    file = tmp_path / VOCABULARY
    file.write_bytes((bundle.path / VOCABULARY).read_bytes())
    about = structs.replace(vocabulary_file(bundle), version="v", file=str(file))
    assert load_values(about) == values_of(bundle)
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match="is not that of version v any more"):
        load_values(about)
    file.unlink()
    with pytest.raises(DataError, match="No such file"):
        load_values(about)
