"""Documents of models without rows of missing and unknown values, or without features of the candidate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polyrec.models.bundle.bundle import write_bundle
from polyrec.models.dlrm.dlrm import DLRM, Architecture, DenseNet, dense_slots
from polyrec.models.dlrm.representation import Representation, initial_stage
from polyrec.models.importers.dlrm import read_dlrm
from polyrec.models.importers.foreign_model import write_foreign_model
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import Schema
from polyrec.models.schema.vocabulary import Vocabulary
from polyrec.planner.plan import Plan, single_path_plan
from tests.models.importers.foreign import Shape, dlrm_state
from tests.server.codecs.schemas import SPLIT
from tests.server.http.docs.test_docs import body_of, valid

SHAPE = Shape(dense=3, rows=(7, 4, 9), width=4, bottom=(6,), top=(5,))


@pytest.fixture(params=[True, False], ids=["ids", "lists"])
def imported(request: Any, client_of: Callable[[Plan], Any], tmp_path: Path) -> Any:
    """A client of an imported model. Its features are single-valued, or lists."""
    torch.save(dlrm_state(np.random.default_rng(1), SHAPE), tmp_path / "model.pt")
    parts = read_dlrm(tmp_path / "model.pt")
    bundle = write_foreign_model(parts, tmp_path / "ads", "ads", single_valued=request.param)
    plan = single_path_plan(bundle.path, "table", "torch")
    return client_of(plan.model_copy(update={"default_budget_ms": 60_000.0}))


def test_exactly_the_documented_values_are_accepted(imported: Any) -> None:
    document = imported.send("GET", "/openapi.json").json()
    row = document["components"]["schemas"]["CandidateRow"]
    single = "required" in row
    assert row.get("required", []) == (["c0", "c1", "c2"] if single else [])
    good: dict[str, Any] = {"d0": 1.5, "c0": 6, "c1": 0, "c2": 8} if single else {"c0": [6, 0], "c1": []}
    outside = {"c0": 7} if single else {"c0": [0, 7]}
    missing = {"c1": None} if single else {"c1": [None]}
    for change, expected in (({}, 200), (outside, 422), (missing, 422), ({"c1": "a"}, 422)):
        body = {"instances": [good | change]}
        assert valid(document, "/v1/predict", body) == (expected == 200)
        assert imported.send("POST", "/v1/predict", json=body).status_code == expected


def test_its_examples_are_valid_and_answered(imported: Any) -> None:
    document = imported.send("GET", "/openapi.json").json()
    for path in ("/v1/predict", "/v1/rank", "/v2/models/{model}/infer"):
        for example in body_of(document, path)["examples"].values():
            assert valid(document, path, example["value"])
            answer = imported.send("POST", path.format(model="ads"), json=example["value"])
            assert answer.status_code == 200, answer.text


def test_examples_of_a_model_without_features_of_the_candidate_are_answered(
    client_of: Callable[[Plan], Any], tmp_path: Path
) -> None:
    features = [{"name": name, "role": "context", "type": "integer", "cardinality": 9} for name in "ab"]
    schema = Schema.model_validate({"name": "churn", "categorical": features, **SPLIT})
    vocabularies = {
        name: Vocabulary(name, "integer", 9, np.arange(11), np.zeros(11, np.int64)) for name in "ab"
    }
    stage = initial_stage(Representation(), schema, vocabularies, width=4, seed=5, spread=0.5)
    net = DenseNet(Architecture(width=4), dense_slots(schema), stage.slots)
    encoder = Encoder(schema, vocabularies, {})
    bundle = write_bundle(tmp_path / "churn", DLRM(stage, net), Representation(), encoder, {}, {})
    plan = single_path_plan(bundle.path, "table", "torch")
    client = client_of(plan.model_copy(update={"default_budget_ms": 60_000.0}))
    document = client.send("GET", "/openapi.json").json()
    for path in ("/v1/predict", "/v1/rank"):
        for example in body_of(document, path)["examples"].values():
            assert valid(document, path, example["value"])
            assert client.send("POST", path, json=example["value"]).status_code == 200
