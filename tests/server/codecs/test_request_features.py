"""Every form of request gives the features of the request that training computes of the same rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyrec.loadtest.traffic.queries import Queries
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.data.encoded import encode as encode_data
from polyrec.models.data.reader import open_data
from polyrec.models.data.request_columns import with_request_features
from polyrec.models.errors import PolyrecError
from polyrec.models.schema.batch import Batch
from polyrec.models.schema.request.pending import computed
from polyrec.models.schema.schema import Schema
from polyrec.models.schema.vocabulary import Vocabulary
from polyrec.planner.plan import Limits
from polyrec.server.codecs.json_rows import JsonDecoder
from polyrec.server.codecs.oip_codec import OipCodec
from polyrec.server.codecs.request_features import TensorFeatures
from polyrec.server.codecs.rows import Columns, Rows, encode
from polyrec.server.errors import Invalid, Malformed
from tests.server.codecs.schemas import SPLIT

REQUESTS = 6
LEAST = -(2**63)
COLUMNS = pa.schema({"item": pa.int64(), "last": pa.int64()})
FORMS = ("instances", "columns", "rank", "infer", "infer_ranking")


class Served:
    """Rows of data as requests in every form, and their encoding by training."""

    def __init__(self, bundle: Bundle, path: Path) -> None:
        self.path = path
        self.schema, self.encoder = bundle.manifest.schema_, bundle.encoder
        table = pq.read_table(path)
        ends = np.flatnonzero(np.diff(table["request_id"].to_numpy()))
        self.table = table.slice(0, int(ends[REQUESTS - 1]) + 1).combine_chunks()
        self.queries = Queries(self.table, self.schema, self.encoder)
        self.decoder = JsonDecoder(self.schema, Limits())
        self.codec = OipCodec(self.schema, Limits(), self.encoder.vocabularies)
        self.names = (*self.schema.context.names, *self.schema.candidate.names)

    def trained(self, rows: Any) -> Batch:
        reader = open_data(self.path, self.schema)
        with encode_data(reader, self.encoder, lambda data: np.zeros(data.num_rows, np.int8)) as data:
            return data.batch(rows)

    def rows(self, form: str, i: int) -> Rows:
        query = self.queries[i]
        if form == "instances":
            rows = self.table.select(self.names).take(query.candidates).to_pylist()
            return self.decoder.predict(orjson.dumps({"instances": rows}))
        if form == "columns":
            return self.decoder.predict(self.queries.predict(query)[0])
        if form == "rank":
            return self.decoder.rank(self.queries.rank(query)[0]).rows
        body, headers = getattr(self.queries, form)(query)
        return self.codec.decode(body, int(next(iter(headers.values()))) if headers else None).rows


@pytest.fixture(scope="module")
def served(bundle: Bundle, clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """Requests of the generated clicks, some of whose items no training row had."""
    table = pq.read_table(clicks)
    items = table["item"].to_pylist()
    last = [f"unknown {items[i]}" if i % 3 == 0 else items[i - i % 7] for i in range(len(items))]
    items = [f"unknown {item}" if i % 5 == 0 else item for i, item in enumerate(items)]
    group = table["request_id"].to_numpy()
    first = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    of_first = np.repeat(first, np.diff(np.r_[first, group.size]))
    last = [items[i] if i % 2 else last[i] for i in of_first]
    recent = [[items[i], items[min(i + 3, len(items) - 1)], f"unknown {i}"] for i in of_first]
    for name, values in (("item", items), ("last_item", last), ("recent_items", recent)):
        at = table.column_names.index(name)
        table = table.set_column(at, name, pa.array(values, table.schema.field(name).type))
    path = tmp_path_factory.mktemp("served") / "clicks.parquet"
    pq.write_table(table, path)
    return Served(bundle, path)


def close(found: Batch, expected: Batch) -> None:
    found, expected = found.exploded(), expected.exploded()
    np.testing.assert_allclose(found.candidate.dense, expected.candidate.dense, rtol=1e-5, atol=1e-5)
    for role in ("context", "candidate"):
        np.testing.assert_array_equal(getattr(found, role).ranks, getattr(expected, role).ranks)
        np.testing.assert_array_equal(getattr(found, role).bag_values, getattr(expected, role).bag_values)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_request_gives_what_training_read(served: Served, form: str) -> None:
    for i in range(REQUESTS):
        close(served.rows(form, i).encode(served.encoder), served.trained(served.queries[i].candidates))


def test_the_rows_of_the_test_have_matches_of_unknown_items(served: Served) -> None:
    names = [d.name for d in served.schema.candidate.dense]
    batch = served.trained(np.arange(served.table.num_rows))
    matches = batch.candidate.dense[:, [names.index("last_match"), names.index("recent_match")]] > 0.5
    item = served.schema.candidate.singles[0]
    unknown = batch.candidate.ranks[:, 0] == served.encoder.vocabulary(item).oov_rank
    assert matches[unknown].any(axis=0).all()


@pytest.mark.parametrize("cut", [(), (1,), (0, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_a_cut_and_merged_request_keeps_its_features(served: Served, form: str, cut: tuple[int, ...]) -> None:
    whole = [served.rows(form, i) for i in range(4)]
    parts: list[Rows] = []
    for i, rows in enumerate(whole):
        parts += (rows.part(0, 3), rows.part(3, rows.rows - 3)) if i in cut else (rows,)
    expected = Batch.concat([served.trained(served.queries[i].candidates) for i in range(4)])
    close(encode(parts, served.encoder), expected)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("form", ["instances", "columns"])
def test_rows_of_several_requests_are_told_apart_by_the_group(
    served: Served, form: str, shuffled: bool
) -> None:
    rows = np.arange(served.table.num_rows)
    if shuffled:
        group = np.random.default_rng(0).permutation(served.table["request_id"].to_numpy())
        # each request's rows stay in order
        rows[np.argsort(group, kind="stable")] = rows.copy()
    table = served.table.select((*served.names, "request_id")).take(rows)
    body = {"instances": table.to_pylist()} if form == "instances" else {"columns": table.to_pydict()}
    close(served.decoder.predict(orjson.dumps(body)).encode(served.encoder), served.trained(rows))


def test_tensors_of_several_requests_are_told_apart_by_lengths(served: Served) -> None:
    merged: dict[str, Any] = {}
    for i in range(REQUESTS):
        for tensor in orjson.loads(served.queries.infer(served.queries[i], binary=False)[0])["inputs"]:
            known = merged.setdefault(
                tensor["name"], tensor | {"shape": [0, *tensor["shape"][1:]], "data": []}
            )
            known["shape"][0] += tensor["shape"][0]
            known["data"] += tensor["data"]
    sizes = served.queries.sizes.tolist()
    groups = {"name": "group.lengths", "datatype": "INT32", "shape": [len(sizes)], "data": sizes}
    body = orjson.dumps({"inputs": [*merged.values(), groups]})
    found = served.codec.decode(body, None).rows.encode(served.encoder)
    close(found, served.trained(np.arange(served.table.num_rows)))


@pytest.mark.parametrize(
    ("item", "last", "equal"),
    [(LEAST, LEAST, 1), (LEAST, LEAST + 1, 0), (None, LEAST, 0), (LEAST + 1, None, 0), (None, None, 0)],
)
def test_the_least_integers_are_no_missing_values(item: int | None, last: int | None, equal: int) -> None:
    feature = {"type": "integer", "table": "item"}
    schema = Schema.model_validate(
        {
            "name": "small",
            "categorical": [{"name": "item", **feature}, {"name": "last", "role": "context", **feature}],
            "request": [{"name": "match", "compute": "match", "of": "item", "to": "last"}],
            "group": "g",
            **SPLIT,
        }
    )
    body = {"context": {"last": last}, "candidates": {"item": [item]}}
    decoded = JsonDecoder(schema, Limits()).rank(orjson.dumps(body)).rows
    assert isinstance(decoded, Columns)
    data = pa.RecordBatch.from_pylist([{"item": item, "last": last}], COLUMNS)
    vocabulary = Vocabulary("item", "integer", 1, np.arange(3), np.zeros(3, np.int64), pa.array([5]))
    ids = np.array([[vocabulary.missing_id if value is None else value for value in (item, last)]])
    (of_tensors, *_) = TensorFeatures(schema, {"item": vocabulary}).plain(
        np.empty((1, 0), np.float32), ids, {}, None
    )
    for found in (decoded.request_features, of_tensors):
        values = computed(found)
        assert values is not None
        assert values.tolist() == [[equal]]
    assert with_request_features(schema, data).column("match").to_pylist() == [equal]


def test_a_row_alone_is_a_list_of_one(served: Served) -> None:
    rows = served.decoder.predict(b'{"instances": [{"price": 80, "item": "x", "last_item": "x"}]}')
    assert isinstance(rows, Columns)
    values = computed(rows.request_features)
    assert values is not None
    (given,) = values
    found = dict(zip([r.name for r in served.schema.request], given.tolist(), strict=True))
    assert found["length"] == found["price_to_minimum"] == found["last_match"] == 1
    assert found["place"] == found["price_order"] == found["price_above_mean"] == found["after_last"] == 0
    assert np.isnan(found["price_to_next"])
    assert np.isnan(found["recent_place"])


@pytest.mark.parametrize(
    "body",
    [
        {"instances": [{"price_order": 1.0}]},
        {"columns": {"item": ["a"], "price_order": [1.0]}},
        {"context": {}, "candidates": {"item": ["a"], "price_order": [1.0]}},
        {"context": {"price_order": 1.0}, "candidates": {"item": ["a"]}},
    ],
)
def test_a_computed_feature_cannot_be_sent(served: Served, body: dict[str, Any]) -> None:
    parse = served.decoder.rank if "context" in body else served.decoder.predict
    with pytest.raises(Invalid, match="'price_order' is computed from the rows of the request"):
        parse(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"item": ["a", "b"], "request_id": [1, None]}, "'request_id': a value is missing"),
        ({"item": ["a", "b"], "request_id": [1]}, "'request_id': 1 values, but 'item' has 2"),
        ({"item": ["a"], "recent_items": [["a"] * 33]}, "'recent_items': 33 values exceed max_length 32"),
    ],
)
def test_bad_columns_are_named(served: Served, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(PolyrecError, match=message):
        served.decoder.predict(json.dumps({"columns": columns}).encode())


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([2], "adds up to 2; there are 3 rows"),
        ([], "has no lengths"),
        ([3, 0], "0 at position 1 is outside"),
        ([4, -1], "4 at position 0 is outside"),
    ],
)
def test_bad_group_lengths_are_named(served: Served, lengths: Sequence[int], message: str) -> None:
    arrays = {
        "dense": np.ones((3, 2), np.float32),
        "sparse": np.zeros((3, 8), np.int64),
        "group.lengths": np.array(lengths, np.int64),
    }
    with pytest.raises(Malformed, match=message):
        served.codec.inputs.rows(arrays)


def test_list_lengths_are_checked_before_anything_is_computed(served: Served) -> None:
    arrays = {
        "dense": np.ones((3, 2), np.float32),
        "sparse": np.zeros((3, 8), np.int64),
        "recent_items.values": np.zeros(3, np.int64),
        "recent_items.lengths": np.array([-1, 4, 0]),
    }
    with pytest.raises(Malformed, match=r"-1 at position 0 is outside \[0, 3\]"):
        served.codec.inputs.rows(arrays)
