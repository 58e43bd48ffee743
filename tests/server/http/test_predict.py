from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest


@pytest.mark.parametrize("form", ["instances", "columns"])
def test_served_probabilities_equal_the_bundles(
    client: Any, requests: list[Any], offline: Callable[[Any], Any], form: str
) -> None:
    for request in requests:
        content = request.rows if form == "instances" else request.columns
        answer = client.send("POST", "/v1/predict", json={form: content})
        assert answer.status_code == 200, answer.text
        np.testing.assert_allclose(answer.json()["predictions"], offline(request), atol=1e-6)


def test_queries_that_arrive_together_get_their_own_answers(
    client: Any, requests: list[Any], offline: Callable[[Any], Any]
) -> None:
    answers = client.together(
        [("POST", "/v1/predict", {"json": {"instances": request.rows}}) for request in requests]
    )
    for request, answer in zip(requests, answers, strict=True):
        np.testing.assert_allclose(answer.json()["predictions"], offline(request), atol=1e-6)


def test_an_answer_names_its_path(client: Any, request_: Any) -> None:
    answer = client.send("POST", "/v1/predict", json={"instances": request_.rows})
    body = answer.json()
    assert (body["path"], body["degraded"], body["reason"]) == ("table@cpu", False, None)
    assert answer.headers["x-polyrec-path"] == "table@cpu"
    assert answer.headers["content-type"] == "application/json"


def test_a_feature_left_out_equals_one_sent_as_null(client: Any, request_: Any) -> None:
    full = request_.rows[0]
    without = {k: v for k, v in full.items() if k not in ("price", "user_id", "filters")}
    nulls = {**full, "price": None, "user_id": None, "filters": None}
    bodies = [{"instances": [row]} for row in (without, nulls)]
    both = [client.send("POST", "/v1/predict", json=body).json()["predictions"] for body in bodies]
    assert both[0] == both[1]


def test_unknown_values_are_served_and_counted(client: Any) -> None:
    def count() -> float:
        lines = client.send("GET", "/metrics").text.splitlines()
        return float(next(line for line in lines if 'oov_lookups_total{feature="item"}' in line).split()[-1])

    before = count()
    body = {"instances": [{"item": "never seen", "position": 10**30}, {"item": "nor this"}]}
    answer = client.send("POST", "/v1/predict", json=body)
    assert answer.status_code == 200
    assert count() - before == 2


def test_large_responses_are_compressed_if_accepted(client: Any, request_: Any) -> None:
    many = {"instances": request_.rows * 20}
    plain = client.send("POST", "/v1/predict", json=many, headers={"accept-encoding": "identity"})
    packed = client.send("POST", "/v1/predict", json=many, headers={"accept-encoding": "gzip"})
    small = client.send("POST", "/v1/predict", json={"instances": [{}]}, headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < int(plain.headers["content-length"])
    unpacked, expected = packed.json(), plain.json()
    assert unpacked.pop("predictions") == pytest.approx(expected.pop("predictions"), abs=1e-6)
    assert unpacked == expected
    assert "content-encoding" not in small.headers


def test_a_number_too_large_for_the_model_is_422(client: Any) -> None:
    answer = client.send("POST", "/v1/predict", json={"instances": [{"price_rank": 1e300}]})
    assert answer.status_code == 422
    assert "price_rank" in answer.json()["error"]
