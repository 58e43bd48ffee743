"""Served probabilities are the evaluated ones: 1,000 test rows, every form of request, both runtimes."""

from __future__ import annotations

import json
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tritonclient.http as triton

from polyrec.cli.main import main
from polyrec.loadtest.traffic.queries import Queries
from polyrec.loadtest.traffic.request_bodies import INFER
from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, fit_splitter
from polyrec.models.schema.schema import Categorical, load_schema
from polyrec.models.schema.vocabulary import ids_of_ranks
from tests.forking import start
from tests.inference import probabilities

ROWS = 1000


@pytest.fixture(scope="module")
def data(shared_data: Path) -> Path:
    return shared_data / "trivago" / "impressions.parquet"


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("served") / "table"
    assert (
        main(["train", "--data", str(data), "--schema", "trivago", "--epochs", "1", "--out", str(out)]) == 0
    )
    return load_bundle(out)


@pytest.fixture(scope="module")
def rows(data: Path) -> pa.Table:
    """The first test rows, about 1,000 in whole requests, as the file has them."""
    schema = load_schema("trivago")
    reader = open_data(data, schema)
    splitter = fit_splitter(reader, schema)
    parts, found = [], 0
    for batch in reader.batches(schema.columns):
        test = batch.filter(pa.array(splitter(batch) == TEST))
        parts.append(test)
        found += test.num_rows
        if found >= ROWS:
            break
    found_rows = pa.Table.from_batches(parts)
    group = found_rows["request_id"].to_numpy()
    return found_rows.slice(0, int(np.flatnonzero(group[1:] != group[:-1])[: ROWS // 20][-1]) + 1)


@pytest.fixture(scope="module")
def offline(
    trained: Bundle, data: Path, rows: pa.Table, tmp_path_factory: pytest.TempPathFactory
) -> np.ndarray:
    """Probabilities of those rows from `polyrec evaluate`."""
    out = tmp_path_factory.mktemp("offline") / "p.npy"
    assert (
        main(["evaluate", str(trained.path), "--data", str(data), "--predictions", str(out), "--json"]) == 0
    )
    return np.asarray(np.load(out)[: rows.num_rows])


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def group_starts(rows: pa.Table) -> list[int]:
    """The first row of each request, and the number of rows."""
    group = rows["request_id"].to_numpy()
    return np.flatnonzero(np.r_[True, group[1:] != group[:-1], True]).tolist()


def by_predict(url: str, bundle: Bundle, rows: pa.Table) -> np.ndarray:
    schema = bundle.manifest.schema_
    names = (*schema.context.names, *schema.candidate.names, "request_id")
    half = group_starts(rows)[20]
    columns = {"columns": rows.slice(0, half).select(names).to_pydict()}
    instances = {"instances": rows.slice(half).select(names).to_pylist()}
    answers = [post(f"{url}/v1/predict", body)["predictions"] for body in (columns, instances)]
    return np.concatenate(answers)


def by_rank(url: str, bundle: Bundle, rows: pa.Table) -> np.ndarray:
    schema = bundle.manifest.schema_
    starts = group_starts(rows)
    out = np.empty(rows.num_rows, np.float32)
    for begin, end in pairwise(starts):
        part = rows.slice(begin, end - begin)
        body = {
            "context": part.slice(0, 1).select(schema.context.names).to_pylist()[0],
            "candidates": part.select(schema.candidate.names).to_pydict(),
        }
        answer = post(f"{url}/v1/rank", body)
        assert answer["scores"] == sorted(answer["scores"], reverse=True)
        out[begin + np.array(answer["order"])] = answer["scores"]
    return out


def by_inference(url: str, bundle: Bundle, rows: pa.Table, binary: bool) -> np.ndarray:
    schema, encoder = bundle.manifest.schema_, bundle.encoder
    table = rows.combine_chunks()
    unknown: dict[str, int] = {}

    def ids_of(feature: Categorical, column: pa.Array) -> np.ndarray:
        """Stable ids; of items without one, a negative number of the client's own."""
        vocabulary = encoder.vocabulary(feature)
        ids = ids_of_ranks(vocabulary.rank_of_id)[vocabulary.encode_arrow(column)]
        if feature.table_name == "item":
            values = column.to_pylist()
            for i in np.flatnonzero(ids == vocabulary.oov_id).tolist():
                ids[i] = -1 - unknown.setdefault(values[i], len(unknown))
        return ids

    arrays = {"dense": np.stack([table[d.name].to_numpy() for d in schema.dense], 1).astype(np.float32)}
    singles = []
    for feature in schema.categorical:
        column = table[feature.name].combine_chunks()
        if feature.multi:
            arrays[f"{feature.name}.values"] = ids_of(feature, column.flatten())
            arrays[f"{feature.name}.lengths"] = column.value_lengths().to_numpy().astype(np.int64)
        else:
            singles.append(ids_of(feature, column))
    arrays["sparse"] = np.stack(singles, 1)
    arrays["group.lengths"] = np.diff(group_starts(rows))
    inputs = []
    for name, array in arrays.items():
        given = triton.InferInput(name, array.shape, "FP32" if name == "dense" else "INT64")
        given.set_data_from_numpy(array, binary_data=binary)
        inputs.append(given)
    outputs = [triton.InferRequestedOutput("probability", binary_data=binary)]
    with triton.InferenceServerClient(url.removeprefix("http://")) as client:
        return np.asarray(client.infer("dlrm", inputs, outputs=outputs).as_numpy("probability"))


def by_inference_ranking(url: str, bundle: Bundle, rows: pa.Table) -> np.ndarray:
    queries = Queries(rows, bundle.manifest.schema_, bundle.encoder)
    found = []
    for i in range(len(queries)):
        body, headers = queries.infer_ranking(queries[i])
        request = urllib.request.Request(f"{url}{INFER}", body, headers)
        with urllib.request.urlopen(request, timeout=30) as response:
            found.append(probabilities(response.read(), dict(response.headers)))
    return np.concatenate(found)


@pytest.mark.long
@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_served_probabilities_equal_the_evaluated_ones(
    runtime: str, trained: Bundle, rows: pa.Table, offline: np.ndarray
) -> None:
    with start(
        {"bundle": trained.path, "runtime": runtime, "default_budget_ms": 10_000, "drain_grace_s": 0}
    ) as server:
        for served in (
            by_predict(server.url, trained, rows),
            by_rank(server.url, trained, rows),
            by_inference(server.url, trained, rows, binary=False),
            by_inference(server.url, trained, rows, binary=True),
            by_inference_ranking(server.url, trained, rows),
        ):
            np.testing.assert_allclose(served, offline, atol=1e-5, rtol=0)
