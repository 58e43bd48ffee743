"""What is served is what was measured: 1,000 real test rows, every endpoint, both runtimes."""

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
from polyrec.models.bundle.bundle import Bundle, load_bundle
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, fit_splitter
from polyrec.models.schema.schema import load_schema
from polyrec.models.schema.vocabulary import ids_of_ranks
from polyrec.server.app.run import start

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
    """The first 1,000 test rows, as the file has them."""
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
    return pa.Table.from_batches(parts).slice(0, ROWS)


@pytest.fixture(scope="module")
def offline(trained: Bundle, data: Path, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """What `polyrec evaluate` says of those rows."""
    out = tmp_path_factory.mktemp("offline") / "p.npy"
    assert (
        main(["evaluate", str(trained.path), "--data", str(data), "--predictions", str(out), "--json"]) == 0
    )
    return np.asarray(np.load(out)[:ROWS])


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def by_predict(url: str, bundle: Bundle, rows: pa.Table) -> np.ndarray:
    schema = bundle.manifest.schema_
    names = schema.context.names + schema.candidate.names
    half = ROWS // 2
    columns = {"columns": rows.slice(0, half).select(names).to_pydict()}
    instances = {"instances": rows.slice(half).select(names).to_pylist()}
    answers = [post(f"{url}/v1/predict", body)["predictions"] for body in (columns, instances)]
    return np.concatenate(answers)


def by_rank(url: str, bundle: Bundle, rows: pa.Table) -> np.ndarray:
    schema = bundle.manifest.schema_
    group = rows["request_id"].to_numpy()
    starts = np.flatnonzero(np.r_[True, group[1:] != group[:-1], True])
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
    arrays = {"dense": np.stack([table[d.name].to_numpy() for d in schema.dense], 1).astype(np.float32)}
    singles = []
    for feature in schema.categorical:
        vocabulary = encoder.vocabulary(feature)
        column = table[feature.name].combine_chunks()
        ids = ids_of_ranks(vocabulary.rank_of_id)
        if feature.multi:
            arrays[f"{feature.name}.values"] = ids[vocabulary.encode_arrow(column.flatten())]
            arrays[f"{feature.name}.lengths"] = column.value_lengths().to_numpy().astype(np.int64)
        else:
            singles.append(ids[vocabulary.encode_arrow(column)])
    arrays["sparse"] = np.stack(singles, 1)
    inputs = []
    for name, array in arrays.items():
        given = triton.InferInput(name, array.shape, "FP32" if name == "dense" else "INT64")
        given.set_data_from_numpy(array, binary_data=binary)
        inputs.append(given)
    outputs = [triton.InferRequestedOutput("probability", binary_data=binary)]
    with triton.InferenceServerClient(url.removeprefix("http://")) as client:
        return np.asarray(client.infer("dlrm", inputs, outputs=outputs).as_numpy("probability"))


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_served_probabilities_equal_the_evaluated_ones(
    runtime: str, trained: Bundle, rows: pa.Table, offline: np.ndarray
) -> None:
    with start({"bundle": trained.path, "runtime": runtime, "default_budget_ms": 10_000}) as server:
        for served in (
            by_predict(server.url, trained, rows),
            by_rank(server.url, trained, rows),
            by_inference(server.url, trained, rows, binary=False),
            by_inference(server.url, trained, rows, binary=True),
        ):
            np.testing.assert_allclose(served, offline, atol=1e-5, rtol=0)
