"""No input makes a 5xx: whole requests, mutated and made up, through the whole application."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

INFER = "/v2/models/dlrm/infer"
PATHS = ("/v1/predict", "/v1/rank", INFER)
LENGTH = "inference-header-content-length"
HEADERS = st.dictionaries(
    st.sampled_from(["content-encoding", "accept-encoding", "x-latency-budget-ms", LENGTH]),
    st.sampled_from(["gzip", "deflate", "0", "1", "17", "-3", "1e9", "nan", "identity", "*", ""]),
    max_size=2,
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
)
VALUES = SCALARS | st.lists(SCALARS, max_size=4) | st.lists(st.lists(SCALARS, max_size=3), max_size=3)
FEATURES = st.sampled_from(
    ["price", "price_rank", "user_id", "platform", "filters", "recent_items", "item", "position", "seen", "?"]
)
PLAIN = ["dense", "sparse", "filters.values", "filters.lengths", "recent_items.values", "?"]
RANKING = ["context.dense", "context.sparse", "candidate.dense", "candidate.sparse", "context_lengths"]
NAMES = st.sampled_from([*PLAIN, *RANKING])
TENSORS = st.fixed_dictionaries(
    {
        "name": NAMES,
        "datatype": st.sampled_from(["FP32", "INT64", "INT32", "BOOL", "BYTES"]),
        "shape": st.lists(st.integers(-1, 3) | st.integers(-(2**65), 2**65), max_size=3),
    },
    optional={
        "data": VALUES,
        "parameters": st.dictionaries(st.just("binary_data_size"), st.integers(-1, 40), max_size=1),
    },
)


def probabilities(path: str, document: Any) -> list[float]:
    """Every number that an answer in JSON gives. Raises KeyError for an answer of another form."""
    if path == INFER:
        (output,) = document["outputs"]
        assert (output["name"], output["datatype"]) == ("probability", "FP32")
        assert output["shape"] == [len(output["data"])]
        return list(output["data"])
    return list(document["predictions" if path == "/v1/predict" else "scores"])


def in_binary(client: Any, content: bytes, headers: dict[str, str] | None, numbers: list[float]) -> None:
    """The same request for binary output gets the same numbers."""
    headers = dict(headers or {})
    length = int(headers.get(LENGTH, len(content)))
    document = json.loads(content[:length])
    document["parameters"] = {**(document.get("parameters") or {}), "binary_data_output": True}
    document.pop("outputs", None)
    top = json.dumps(document).encode()
    if LENGTH in headers:
        headers[LENGTH] = str(len(top))
    answer = client.post(INFER, top + content[length:], headers)
    assert answer.status_code == 200, answer.text
    raw = answer.content[int(answer.headers[LENGTH]) :]
    np.testing.assert_allclose(np.frombuffer(raw, "<f4"), numbers, atol=1e-6)


def acceptable(client: Any, path: str, content: bytes, headers: dict[str, str] | None = None) -> None:
    answer = client.post(path, content, headers)
    assert answer.status_code == 200 or 400 <= answer.status_code < 500 or answer.status_code == 504
    if answer.status_code == 200:
        document = answer.json()
        numbers = probabilities(path, document)
        assert numbers
        assert all(isinstance(p, float) and 0 <= p <= 1 for p in numbers)
        if path == INFER:
            in_binary(client, content, headers, numbers)
    else:
        assert answer.headers["content-type"] == "application/json"
        line = answer.json()["error"]
        assert line
        assert "\n" not in line


@pytest.mark.parametrize("path", PATHS)
@given(content=st.binary(max_size=100), headers=HEADERS)
def test_any_bytes(client: Any, path: str, content: bytes, headers: dict[str, str]) -> None:
    acceptable(client, path, content, headers)


@given(
    rows=st.lists(st.dictionaries(FEATURES, VALUES, max_size=5), max_size=4),
    columns=st.dictionaries(FEATURES, VALUES, max_size=5),
)
def test_any_document_of_features(client: Any, rows: list[Any], columns: dict[str, Any]) -> None:
    for document in ({"instances": rows}, {"columns": columns}):
        acceptable(client, "/v1/predict", json.dumps(document).encode())
    for candidates in (rows, columns):
        context = rows[0] if rows else {}
        for document in (
            {"candidates": candidates},
            {"context": context, "candidates": candidates, "top_k": 2},
        ):
            acceptable(client, "/v1/rank", json.dumps(document).encode())


@given(inputs=st.lists(TENSORS, max_size=4), tail=st.binary(max_size=60))
def test_any_document_of_tensors(client: Any, inputs: list[Any], tail: bytes) -> None:
    header = json.dumps({"inputs": inputs}).encode()
    acceptable(client, INFER, header)
    acceptable(client, INFER, header + tail, {LENGTH: str(len(header))})


def tensor_document(arrays: dict[str, Any]) -> dict[str, Any]:
    """An inference request in JSON."""
    kinds = {"f": "FP32", "i": "INT64"}
    return {
        "inputs": [
            {"name": name, "shape": list(a.shape), "datatype": kinds[a.dtype.kind], "data": a.tolist()}
            for name, a in arrays.items()
        ]
    }


def test_all_endpoints_give_the_numbers_of_the_bundle(
    client: Any, request_: Any, tensors: Any, offline: Any
) -> None:
    documents = (
        {"columns": request_.columns},
        {"context": request_.context, "candidates": request_.candidates},
        tensor_document(tensors(request_)),
    )
    expected = offline(request_)
    for path, document in zip(PATHS, documents, strict=True):
        content = json.dumps(document).encode()
        acceptable(client, path, content)
        given = client.post(path, content).json()
        order = given.get("order", range(len(expected)))
        np.testing.assert_allclose(probabilities(path, given), [expected[i] for i in order], atol=1e-5)


@pytest.mark.parametrize("path", PATHS)
@given(data=st.data())
def test_any_mutation_of_a_valid_body(client: Any, request_: Any, tensors: Any, path: str, data: Any) -> None:
    if path.endswith("predict"):
        document: dict[str, Any] = {"instances": request_.rows[:3]}
    elif path.endswith("rank"):
        document = {"context": request_.context, "candidates": request_.candidates}
    else:
        document = tensor_document(tensors(request_))
    body = bytearray(json.dumps(document).encode())
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from(b'09-.eE"[]{},:\x00\xffn'.split(b",")) | st.binary(max_size=2)
        )
    acceptable(client, path, bytes(body))


@pytest.mark.parametrize("number", ["3.4e38", "-3.4e38", "1e308", "1e39", "-0.0", "5e-324"])
@pytest.mark.parametrize("feature", ["price", "price_rank"])
def test_any_number(client: Any, feature: str, number: str) -> None:
    acceptable(client, "/v1/predict", f'{{"instances": [{{"{feature}": {number}}}]}}'.encode())
