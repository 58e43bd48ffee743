from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.planner.plan import Plan, single_path_plan


def test_candidates_come_back_in_the_order_of_their_probabilities(
    client: Any, requests: list[Any], offline: Callable[[Any], Any]
) -> None:
    for request in requests:
        body = {"context": request.context, "candidates": request.candidates}
        answer = client.send("POST", "/v1/rank", json=body)
        assert answer.status_code == 200, answer.text
        order, scores = answer.json()["order"], answer.json()["scores"]
        probabilities = offline(request)
        assert sorted(order) == list(range(len(probabilities)))
        assert scores == sorted(scores, reverse=True)
        np.testing.assert_allclose(scores, probabilities[order], atol=1e-6)


def test_top_k_keeps_the_best(client: Any, request_: Any) -> None:
    body = {"context": request_.context, "candidates": request_.candidates}
    everything = client.send("POST", "/v1/rank", json=body).json()
    best = client.send("POST", "/v1/rank", json={**body, "top_k": 3}).json()
    assert best["order"] == everything["order"][:3]
    assert best["scores"] == pytest.approx(everything["scores"][:3], abs=1e-6)


def test_equal_scores_keep_the_order_of_their_candidates(
    bundle: Bundle, client_of: Callable[[Plan], Any], tmp_path: Path
) -> None:
    model = deepcopy(bundle.model())
    with torch.no_grad():
        for parameter in model.net.parameters():
            parameter.zero_()
    equal = write_bundle(tmp_path / "equal", model, bundle.manifest.representation, bundle.encoder, {}, {})
    client = client_of(single_path_plan(equal.path, equal.name, "torch"))
    answer = client.send("POST", "/v1/rank", json={"candidates": {"item": ["x"] * 30}}).json()
    assert len(set(answer["scores"])) == 1
    assert answer["order"] == list(range(30))


def test_candidates_as_objects_equal_candidates_as_columns(client: Any, request_: Any) -> None:
    names = request_.schema.candidate.names
    objects = [{name: row[name] for name in names} for row in request_.rows]
    by_columns = {"context": request_.context, "candidates": request_.candidates}
    by_objects = {"context": request_.context, "candidates": objects}
    answers = [client.send("POST", "/v1/rank", json=body).json() for body in (by_columns, by_objects)]
    ranked, expected = (sorted(zip(a["order"], a["scores"], strict=True)) for a in answers)
    np.testing.assert_allclose(ranked, expected, rtol=0, atol=1e-6)
    assert (answers[0]["path"], answers[0]["degraded"], answers[0]["reason"]) == ("table@cpu", False, None)


def test_a_ranking_without_context_is_one_of_missing_values(client: Any) -> None:
    candidates = {"item": ["1", "2"]}
    bare = client.send("POST", "/v1/rank", json={"candidates": candidates}).json()
    empty = client.send("POST", "/v1/rank", json={"context": {}, "candidates": candidates}).json()
    assert bare == empty
