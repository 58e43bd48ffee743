"""Tests users' mistakes: the exact status of each, and what its one line names."""

from __future__ import annotations

import gzip
import json
from typing import Any

import httpx
import pytest

INFER = "/v2/models/dlrm/infer"
ROW = '{"item": "1", "price": 1}'


def infer(**changed: Any) -> str:
    dense = {"name": "dense", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    sparse = {"name": "sparse", "datatype": "INT64", "shape": [1, 8], "data": [0] * 8}
    return json.dumps({"inputs": [dense | changed, sparse]})


MISTAKES: list[tuple[str, str | bytes, dict[str, str], int, str]] = [
    # path, body, headers, status, what the line says
    ("/v1/predict", f'{{"instances": [{ROW}', {}, 400, "the JSON is truncated after"),
    ("/v1/predict", "", {}, 400, "the body is empty; JSON is expected"),
    (
        "/v1/predict",
        '{"columns": {"price": [NaN]}}',
        {},
        400,
        "NaN is not a JSON number (byte 23) in 'price'",
    ),
    ("/v1/predict", b"\xff\xfe", {}, 400, "JSON is malformed: invalid character (byte 0)"),
    ("/v1/predict", '{"rows": []}', {}, 422, "unknown key 'rows'; expected 'instances' or 'columns'"),
    ("/v1/predict", '{"instances": [{"color": 1}]}', {}, 422, "unknown feature 'color' at $.instances[0]"),
    ("/v1/predict", '{"instances": [{"price": "9"}]}', {}, 422, "got str - at $.instances[0].price"),
    ("/v1/predict", '{"instances": [{"price": 1e400}]}', {}, 422, "out of range - at $.instances[0].price"),
    ("/v1/predict", '{"instances": [{"price_rank": 1e300}]}', {}, 422, "feature 'price_rank': value 1e+300"),
    ("/v1/predict", '{"instances": [{"filters": "spa"}]}', {}, 422, "got str - at $.instances[0].filters"),
    ("/v1/predict", '{"instances": [{"position": 1.5}]}', {}, 422, "got float - at $.instances[0].position"),
    (
        "/v1/predict",
        '{"columns": {"item": ["1"], "seen": [0, 1]}}',
        {},
        422,
        "feature 'item': 1 values, but 'seen'",
    ),
    (
        "/v1/predict",
        '{"instances": [{"position": 1%s}]}' % ("0" * 1000),
        {},
        422,
        "out of range - at $.instances[0].position",
    ),
    ("/v1/predict", '{"instances": []}', {}, 422, "'instances' has no rows"),
    (
        "/v1/predict",
        json.dumps({"instances": [{"filters": ["a"] * 65}]}),
        {},
        422,
        "feature 'filters': 65 values exceed max_length 64",
    ),
    (
        "/v1/predict",
        json.dumps({"instances": [{}] * 4097}),
        {},
        413,
        "'instances' has 4097 rows; the limit is 4096",
    ),
    ("/v1/predict", " " * 50_000_000, {}, 413, "the body has 50000000 bytes; the limit is 1048576"),
    (
        "/v1/predict",
        gzip.compress(b" " * 50_000_000, mtime=0),
        {"content-encoding": "gzip"},
        413,
        "decompresses to more than 1048576 bytes",
    ),
    ("/v1/predict", "{}", {"content-encoding": "gzip"}, 400, "the body is not gzip"),
    ("/v1/predict", f'{{"instances": [{ROW}]}}', {"x-latency-budget-ms": "fast"}, 400, "X-Latency-Budget-Ms"),
    ("/v1/rank", '{"context": {}}', {}, 422, "missing required field candidates"),
    ("/v1/rank", '{"candidates": {"user_id": ["u"]}}', {}, 422, "'user_id' is a context feature"),
    ("/v1/rank", '{"context": {"item": "1"}, "candidates": [{}]}', {}, 422, "'item' is a candidate feature"),
    ("/v1/rank", '{"candidates": [{}], "top_k": 0}', {}, 422, "Expected int >= 1 - at $.top_k"),
    (INFER, infer(data=[1]), {}, 400, "input 'dense': 1 values in data, shape [1, 2] takes 2"),
    (INFER, infer(shape=[2, 1]), {}, 400, "input 'dense' has shape [2, 1]; expected [-1, 2]"),
    (INFER, infer(datatype="FP64"), {}, 400, "input 'dense' has datatype FP64; expected FP32"),
    (INFER, infer(name="dens"), {}, 400, "unknown input 'dens'"),
    (INFER, infer(data=[1, "x"]), {}, 400, "input 'dense': data: Expected float, got str - at $[1]"),
    (INFER, '{"inputs": []}', {}, 400, "input 'dense' is missing"),
    (INFER, "{}", {"inference-header-content-length": "9"}, 400, "is 9, the body has 2 bytes"),
    (INFER, b"\0" * 71, {"inference-header-content-length": "0"}, 400, "whole rows of 72 bytes"),
    ("/v2/models/other/infer", infer(), {}, 404, "unknown model 'other'; this server has 'trivago'"),
    ("/v1/score", "{}", {}, 404, "no page '/v1/score'"),
]


@pytest.mark.parametrize(
    ("path", "content", "headers", "status", "says"), MISTAKES, ids=[f"{m[3]} {m[4]}" for m in MISTAKES]
)
def test_a_mistake_has_one_status_and_one_line(
    http: httpx.Client, path: str, content: str | bytes, headers: dict[str, str], status: int, says: str
) -> None:
    answer = http.post(path, content=content, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    line = answer.json()["error"]
    assert says in line
    assert "\n" not in line


def test_an_id_out_of_range_names_its_feature(http: httpx.Client) -> None:
    body = json.loads(infer())
    body["inputs"][1]["data"] = [10**9] * 8
    answer = http.post(INFER, json=body)
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("feature 'user_id': id 1000000000 is outside [0, ")
