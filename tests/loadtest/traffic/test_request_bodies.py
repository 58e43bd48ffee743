from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import numpy as np
import pytest

from polyrec.loadtest.traffic.queries import Queries, read_rows
from polyrec.loadtest.traffic.request_bodies import (
    INFER,
    PREDICT,
    RANK,
    Features,
    infer_body,
    plain_tensors,
    rank_body,
    ranking_tensors,
)
from polyrec.server.child import ServerProcess
from tests.forking import start
from tests.inference import probabilities

SCHEMA = {
    "dense": [{"name": "price"}, {"name": "age", "role": "context"}],
    "categorical": [
        {"name": "user", "role": "context"},
        {"name": "tags", "role": "context", "pooling": "mean"},
        {"name": "item"},
        {"name": "labels", "role": "candidate", "pooling": "sum"},
    ],
}
FEATURES = Features.from_schema(SCHEMA)
CONTEXT = {"age": [30], "user": [1], "tags": ([7, 8], [2])}
CANDIDATES = {"price": [1.5, 2.0], "item": [4, 5], "labels": ([9], [0, 1])}


@pytest.fixture(scope="module")
def http(bundle_dir: Any) -> Iterator[httpx.Client]:
    with (
        start({"bundle": bundle_dir, "drain_grace_s": 0, "default_budget_ms": 60_000}) as child,
        client(child) as opened,
    ):
        yield opened


def client(child: ServerProcess) -> httpx.Client:
    return httpx.Client(base_url=child.url, timeout=30)


def test_features_are_laid_out_as_the_schema_file_has_them() -> None:
    assert FEATURES.plain.dense == ("price", "age")
    assert FEATURES.plain.sparse == ("user", "item")
    assert FEATURES.plain.bags == ("tags", "labels")
    assert (FEATURES.context.dense, FEATURES.context.sparse) == (("age",), ("user",))
    assert (FEATURES.candidate.sparse, FEATURES.candidate.bags) == (("item",), ("labels",))


def test_tensors_have_the_types_and_shapes_of_the_protocol() -> None:
    tensors = ranking_tensors(FEATURES, CONTEXT, CANDIDATES, [2])
    assert {name: (a.dtype.str, a.shape) for name, a in tensors.items()} == {
        "context.dense": ("<f4", (1, 1)),
        "context.sparse": ("<i8", (1, 1)),
        "tags.values": ("<i8", (2,)),
        "tags.lengths": ("<i8", (1,)),
        "candidate.dense": ("<f4", (2, 1)),
        "candidate.sparse": ("<i8", (2, 1)),
        "labels.values": ("<i8", (1,)),
        "labels.lengths": ("<i8", (2,)),
        "context_lengths": ("<i8", (1,)),
    }
    plain = plain_tensors(FEATURES, CANDIDATES | {"age": [3, 4], "user": [1, 1], "tags": ([7], [1, 0])})
    assert plain["dense"].tolist() == [[1.5, 3], [2, 4]]
    assert plain["sparse"].tolist() == [[1, 4], [1, 5]]


def test_a_feature_without_values_is_named() -> None:
    with pytest.raises(ValueError, match="feature 'user' has no values"):
        ranking_tensors(FEATURES, {"age": [30], "tags": ([], [0])}, CANDIDATES)


def test_json_and_binary_have_the_same_content() -> None:
    tensors = ranking_tensors(FEATURES, CONTEXT, CANDIDATES)
    body, headers = infer_body(tensors, binary=False, timeout_us=500)
    assert headers == {}
    document = json.loads(body)
    assert document["parameters"] == {"timeout": 500}
    binary, headers = infer_body(tensors, timeout_us=500)
    length = int(headers["Inference-Header-Content-Length"])
    assert json.loads(binary[:length])["parameters"] == {"timeout": 500, "binary_data_output": True}
    at = length
    for given, (name, array) in zip(document["inputs"], tensors.items(), strict=True):
        assert (given["name"], given["shape"]) == (name, list(array.shape))
        assert given["data"] == array.ravel().tolist()
        assert binary[at : at + array.nbytes] == array.tobytes()
        at += array.nbytes
    assert at == len(binary)


def test_every_form_of_a_query_gets_the_same_probabilities(
    http: httpx.Client, clicks: Any, bundle: Any
) -> None:
    schema = bundle.manifest.schema_
    queries = Queries(read_rows(clicks, schema, 2000), schema, bundle.encoder)
    for query in (queries[0], queries.sample(270, np.random.default_rng(0))):
        rows = query.candidates.size

        def asked(path: str, request: tuple[bytes, Mapping[str, str]]) -> httpx.Response:
            return http.post(path, content=request[0], headers=dict(request[1]))

        expected = np.array(asked(PREDICT, queries.predict(query)).json()["predictions"])
        assert expected.shape == (rows,)
        ranking = asked(RANK, queries.rank(query)).json()
        np.testing.assert_allclose(ranking["scores"], expected[ranking["order"]], atol=1e-6)
        forms: list[Callable[..., Any]] = [queries.infer, queries.infer_ranking]
        for form in forms:
            for binary in (True, False):
                answer = asked(INFER, form(query, binary))
                np.testing.assert_allclose(probabilities(answer.content, answer.headers), expected, atol=1e-6)


def test_top_k_is_how_many_come_back(http: httpx.Client) -> None:
    body = rank_body({"user_id": "u1"}, {"item": ["1", "2", "3"]}, top_k=2)
    assert len(http.post(RANK, content=body).json()["order"]) == 2


def test_numpy_is_the_only_requirement() -> None:
    program = """
import sys
sys.modules["orjson"] = None
from polyrec.loadtest.traffic.request_bodies import predict_body
assert predict_body({"a": [1, None]}) == b'{"columns":{"a":[1,null]}}'
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"pyarrow", "pydantic", "torch", "msgspec", "httptools"} & set(done.stdout.split())
