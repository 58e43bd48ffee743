from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.data.encoded import encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, TRAIN, VALIDATION, fit_splitter, require_test_rows
from polyrec.models.dlrm.dlrm import Architecture
from polyrec.models.errors import DataError
from polyrec.models.evaluation.predictions import predict_all
from polyrec.models.runtimes import open_runtime, predict_rows
from polyrec.models.schema.schema import Schema, load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import Recipe, RecipeFile

SMALL = Architecture(width=4, bottom=(8,), top=(8,), interaction="dot")


class Phases:
    """Remembers which phases were announced."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, name: str, rows: int | None) -> Callable[[int], object]:
        self.names.append(name)
        return lambda done: None


@pytest.fixture(scope="module")
def learn(clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Bundle]:
    """Trains a tiny bundle on `clicks`, with changes to the schema or the seed."""

    def learn(seed: int = 0, **changes: object) -> Bundle:
        schema = Schema.model_validate(load_schema("trivago").model_dump() | changes)
        training = RecipeFile(architecture=SMALL, recipe=Recipe(epochs=1, batch_rows=1024, seed=seed))
        out = tmp_path_factory.mktemp("bundles") / "tiny"
        return Learner(open_data(clicks, schema), schema, training).learn(out)

    return learn


def alone(bundle: Bundle, clicks: Path) -> np.ndarray:
    """The obvious way: one bundle, its own pass over the data."""
    schema = bundle.manifest.schema_
    reader = open_data(clicks, schema)
    with encode(reader, bundle.encoder, fit_splitter(reader, schema), (TEST,)) as data:
        return predict_rows(open_runtime("torch", bundle), data)


def test_each_bundles_predictions_equal_those_of_a_single_run(
    clicks: Path, bundle: Bundle, learn: Callable[..., Bundle]
) -> None:
    without_users = [f.model_dump() for f in load_schema("trivago").categorical if f.name != "user_id"]
    bundles = {"trained": bundle, "tiny": learn(), "no users": learn(categorical=without_users)}
    found = predict_all(bundles, clicks, (TEST,))
    assert list(found.probabilities) == list(bundles)
    for name, p in found.probabilities.items():
        assert p == pytest.approx(alone(bundles[name], clicks))
        assert p.shape == found.label.shape
    assert found.group is not None


def test_bundles_that_encode_alike_share_one_pass(clicks: Path, learn: Callable[..., Bundle]) -> None:
    phases = Phases()
    predict_all({"a": learn(seed=0), "b": learn(seed=1)}, clicks, (TEST,), phase=phases)
    assert phases.names == ["split", "encode", "predict a", "predict b"]


def test_a_given_splitter_is_not_fitted_again(clicks: Path, bundle: Bundle) -> None:
    schema, phases = bundle.manifest.schema_, Phases()
    splitter = require_test_rows(open_data(clicks, schema), schema)
    found = predict_all({"a": bundle}, clicks, (TEST,), phase=phases, splitter=splitter)
    assert phases.names == ["encode", "predict a"]
    assert found.probabilities["a"] == pytest.approx(alone(bundle, clicks))


def test_all_rows_of_a_single_time_can_be_measured(clicks: Path, bundle: Bundle, tmp_path: Path) -> None:
    whole = parquet.read_table(clicks)
    first = whole.slice(0, 1)
    parquet.write_table(first, tmp_path / "one.parquet")
    found = predict_all({"a": bundle}, tmp_path / "one.parquet", (TRAIN, VALIDATION, TEST))
    expected = predict_all({"a": bundle}, clicks, (TRAIN, VALIDATION, TEST))
    assert expected.label.size == whole.num_rows
    assert found.label.tolist() == [expected.label[0]]
    assert found.probabilities["a"].shape == (1,)
    with pytest.raises(DataError, match="leaves no test rows"):
        predict_all({"a": bundle}, tmp_path / "one.parquet", (TEST,))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("label", {"column": "clicked", "positive_above": 0.5}),
        ("split", {"rule": "time", "columns": ["request_id"], "train": 0.7}),
        ("group", "timestamp"),
    ],
)
def test_bundles_that_disagree_on_the_rows_are_rejected(
    clicks: Path, bundle: Bundle, learn: Callable[..., Bundle], key: str, value: object
) -> None:
    with pytest.raises(DataError, match=f"bundle 'b' has another {key} in its schema than 'a'"):
        predict_all({"a": bundle, "b": learn(**{key: value})}, clicks, (TEST,))
