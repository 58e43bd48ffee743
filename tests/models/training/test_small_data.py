"""Tests training on few rows, on rows of one class, and on features that tell nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyrec.models.data.reader import open_data
from polyrec.models.errors import DataError
from polyrec.models.schema.schema import Schema
from polyrec.models.training.baselines import shortfalls
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import RecipeFile

SCHEMA = Schema.model_validate(
    {
        "name": "few",
        "categorical": [{"name": "user", "role": "context"}, {"name": "item"}],
        "dense": [{"name": "price", "transform": ["standardise"]}],
        "label": {"column": "clicked"},
        "split": {"rule": "column", "columns": ["part"]},
    }
)
PARTS = np.array(["train"] * 220 + ["validation"] * 30 + ["test"] * 1000)


def learner(path: Path, clicked: np.ndarray, seed: int = 0) -> Learner:
    """Writes rows whose clicks have nothing to do with their features, and returns their learner."""
    random = np.random.default_rng(seed)
    users, items = (random.integers(0, n, PARTS.size) for n in (60, 40))
    columns = {
        "user": [f"u{i}" for i in users],
        "item": [f"i{i}" for i in items],
        "price": random.normal(size=PARTS.size),
        "part": PARTS,
        "clicked": clicked.astype(np.int8),
    }
    pq.write_table(pa.table(columns), path)
    return Learner(open_data(path, SCHEMA), SCHEMA, RecipeFile().with_recipe({"seed": seed}))


def random_clicks(seed: int, rate: float = 0.3) -> np.ndarray:
    return np.random.default_rng([seed, 1]).random(PARTS.size) < rate


def test_default_is_close_to_the_base_rate_on_random_clicks(tmp_path: Path) -> None:
    """The calibration on 30 rows made log-losses up to twice the constant's while its scale had no prior."""
    ratios = []
    for seed in range(12):
        trained = learner(tmp_path / "data.parquet", random_clicks(seed), seed=seed)
        metrics = trained.learn(tmp_path / "bundle", replace=True).manifest.metrics
        ratios.append(float(metrics["test"]["log_loss"] or 0) / float(metrics["constant"]["log_loss"] or 1))
    assert max(ratios) < 1.2
    assert np.mean(ratios) < 1.06


@pytest.mark.parametrize("clicks", [False, True])
def test_training_rows_of_one_class_are_refused(tmp_path: Path, clicks: bool) -> None:
    clicked = np.where(PARTS == "train", clicks, random_clicks(0))
    which = "a click" if clicks else "without a click"
    message = f"data.parquet: all 220 training rows are {which} .label 'clicked' > 0.*positive_above"
    with pytest.raises(DataError, match=message):
        learner(tmp_path / "data.parquet", clicked).learn(tmp_path / "bundle")


def test_validation_and_test_rows_of_one_class_give_warnings(tmp_path: Path) -> None:
    clicked = np.where(PARTS == "train", random_clicks(0), False)
    told: list[str] = []
    trained = learner(tmp_path / "data.parquet", clicked)
    trained = Learner(trained.reader, SCHEMA, trained.training, notice=told.append)
    metrics = trained.learn(tmp_path / "bundle").manifest.metrics
    assert told == [
        "warning: all 30 validation rows are without a click: they cannot tell good models from bad ones"
    ]
    assert shortfalls(metrics) == [
        "among 1,000 test rows there is no click: information and AUC are undefined"
    ]
