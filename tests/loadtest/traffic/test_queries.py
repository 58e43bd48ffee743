from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from polyrec.loadtest.drivers.connection import LoadError
from polyrec.loadtest.traffic.queries import UNGROUPED_ROWS, Queries, read_rows
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.schema.schema import Schema, load_schema

TRIVAGO = load_schema("trivago")


@pytest.fixture(scope="module")
def data(clicks: Path) -> pa.Table:
    return read_rows(clicks, TRIVAGO, 500)


def test_the_given_number_of_rows_is_read(data: pa.Table, clicks: Path) -> None:
    assert data.num_rows == 500
    assert read_rows(clicks, TRIVAGO, 10**9).num_rows == 6000


def test_a_query_is_the_rows_of_one_request(data: pa.Table) -> None:
    queries = Queries(data, TRIVAGO)
    groups = data["request_id"].to_numpy()
    rows = np.concatenate([queries[i].candidates for i in range(len(queries))])
    assert rows.tolist() == list(range(500))
    for i in range(len(queries)):
        assert len(set(groups[queries[i].candidates])) == 1
    body = json.loads(queries.rank(queries[1])[0])
    own = data.take(queries[1].candidates)
    assert body["context"]["user_id"] == own["user_id"][0].as_py()
    assert body["candidates"]["item"] == own["item"].to_pylist()


def test_data_without_groups_are_cut_into_runs(data: pa.Table) -> None:
    queries = Queries(data, TRIVAGO.model_copy(update={"group": None}))
    assert len(queries) == -(-500 // UNGROUPED_ROWS)
    assert queries[0].candidates.size == UNGROUPED_ROWS


def test_a_predicted_query_has_the_context_in_every_row(data: pa.Table) -> None:
    queries = Queries(data, TRIVAGO)
    query = queries.sample(40, np.random.default_rng(3))
    columns = json.loads(queries.predict(query)[0])["columns"]
    assert columns["user_id"] == [data["user_id"][query.context].as_py()] * 40
    assert columns["item"] == data["item"].take(query.candidates).to_pylist()


def test_ids_need_a_bundle(data: pa.Table) -> None:
    queries = Queries(data, TRIVAGO)
    with pytest.raises(LoadError, match="need the bundle that is served"):
        queries.infer_ranking(queries[0])


def test_the_same_query_is_smaller_with_its_context_once(data: pa.Table, bundle: Bundle) -> None:
    queries = Queries(data, TRIVAGO, bundle.encoder)
    query = queries[0]
    for once, repeated in ((queries.rank, queries.predict), (queries.infer_ranking, queries.infer)):
        assert len(once(query)[0]) < len(repeated(query)[0])


def test_no_rows_are_an_error(data: pa.Table) -> None:
    with pytest.raises(LoadError, match="no rows"):
        Queries(data.slice(0, 0), Schema.model_validate(TRIVAGO.model_dump()))
