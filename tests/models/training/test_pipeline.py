from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.data.encoded import encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, TRAIN, VALIDATION, fit_splitter
from polyrec.models.dlrm.dlrm import Architecture
from polyrec.models.embeddings.computed import Encoding
from polyrec.models.errors import DataError
from polyrec.models.evaluation.metrics import evaluate
from polyrec.models.evaluation.predictions import predict_all
from polyrec.models.runtimes import open_runtime, predict_rows
from polyrec.models.schema.schema import Schema, load_schema
from polyrec.models.training.baselines import shortfalls
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import RECIPES, Recipe, RecipeFile, default_recipe_file, load_recipe_file


def test_a_bundles_test_metrics_equal_those_of_its_predictions(bundle: Bundle, clicks: Path) -> None:
    schema = bundle.manifest.schema_
    reader = open_data(clicks, schema)
    with encode(reader, bundle.encoder, fit_splitter(reader, schema), (TEST,)) as data:
        quality = evaluate(predict_rows(open_runtime("torch", bundle), data), data.label, data.group)
    # one pair of rows whose scores differ in the last bit alone, and AUC moves by 1 / (clicks * others)
    assert quality.as_dict() == pytest.approx(bundle.manifest.metrics["test"], rel=1e-4)


def test_refit_learns_the_vocabulary_of_the_validation_rows_too(clicks: Path, tmp_path: Path) -> None:
    schema = load_schema("trivago")
    reader = open_data(clicks, schema)
    sizes = []
    for refit in (False, True):
        training = RecipeFile(recipe=Recipe(epochs=1, batch_rows=512, refit=refit))
        bundle = Learner(reader, schema, training).learn(tmp_path / f"refit-{refit}")
        sizes.append(bundle.encoder.vocabularies["user_id"].size)
    assert sizes[1] > sizes[0]


@pytest.mark.parametrize(("beyond", "linear"), [(0, False), (4500, True)])
def test_a_bundle_says_whether_its_training_began_nearly_linear(
    clicks: Path, tmp_path: Path, beyond: int, linear: bool
) -> None:
    """4,320 of the 6,000 rows are for training, 4,800 with those for validation."""
    schema = load_schema("trivago")
    recipe = Recipe(epochs=1, batch_rows=512, refit=True, linear_start=(0, beyond))
    bundle = Learner(open_data(clicks, schema), schema, RecipeFile(recipe=recipe)).learn(tmp_path / "bundle")
    assert bundle.manifest.training["linear_start"] is linear


def test_the_fingerprint_identifies_the_training_data(bundle: Bundle, clicks: Path) -> None:
    fingerprint = open_data(clicks, bundle.manifest.schema_).fingerprint()
    assert bundle.manifest.training["data"] == {"fingerprint": fingerprint, "path": clicks.name}


@pytest.mark.parametrize("name", [file.stem for file in RECIPES.glob("*.yaml")])
def test_shipped_recipes_load_and_belong_to_their_schema(name: str) -> None:
    assert default_recipe_file(load_schema(name)) == load_recipe_file(name)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("recipe: {epochs: 0}", "recipe.epochs"),
        ("recipe: {epoch: 1}", "recipe.epoch"),
        ("architecture: {interaction: sum}", "architecture.interaction"),
        ("architecture: {widths: [8, 4]}", "widths must increase"),
        (
            "{architecture: {widths: [4, 8]}, recipe: {block_lr: [1.0]}}",
            "block_lr has 1 step sizes for 2 nested widths",
        ),
        ("recipe: {linear_start: [50000, 5000]}", "linear_start: the range of 50000 to 5000 rows is empty"),
        ("[", "is not YAML"),
    ],
)
def test_a_bad_recipe_is_named_in_one_line(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(DataError, match=reason) as error:
        load_recipe_file(file)
    assert "\n" not in str(error.value)


def test_a_missing_recipe_lists_the_shipped_ones() -> None:
    with pytest.raises(DataError, match=r"shipped recipes: .*trivago"):
        load_recipe_file("nope")


def test_one_training_gives_a_bundle_of_all_widths(clicks: Path, tmp_path: Path) -> None:
    schema = load_schema("trivago")
    reader = open_data(clicks, schema)
    training = RecipeFile.model_validate(
        {
            "architecture": {"widths": [2, 8], "bottom": [16], "top": [32]},
            "recipe": {"epochs": 1, "batch_rows": 256, "block_lr": [1.0, 0.5], "average": 0.9, "refit": True},
        }
    )
    bundle = Learner(reader, schema, training).learn(tmp_path / "nested")
    assert bundle.widths == (2, 8)
    assert bundle.test_metrics == bundle.at_width(8).test_metrics
    with encode(reader, bundle.encoder, fit_splitter(reader, schema), (TEST,)) as data:
        for view in bundle.by_width():
            quality = evaluate(predict_rows(open_runtime("onnx", view), data), data.label, data.group)
            assert quality.as_dict() == pytest.approx(view.test_metrics, rel=1e-3)


def test_sampled_negatives_leave_probabilities_of_the_whole_traffic(clicks: Path, tmp_path: Path) -> None:
    table = pq.read_table(clicks)
    kept = (np.random.default_rng(0).random(table.num_rows) < 0.25) | (table["clicked"].to_numpy() > 0)
    pq.write_table(table.filter(kept), tmp_path / "sampled.parquet")
    schema = load_schema("trivago")
    sampled = schema.model_copy(
        update={"label": schema.label.model_copy(update={"negatives_kept": 0.25}), "name": "sampled"}
    )
    recipe = Recipe(epochs=2, batch_rows=128)
    training = RecipeFile(architecture=Architecture(width=4, bottom=(8,), top=(16,)), recipe=recipe)
    bundle = Learner(open_data(tmp_path / "sampled.parquet", sampled), sampled, training).learn(
        tmp_path / "b"
    )
    # without the correction probabilities are up to four times too high
    assert 0.5 < bundle.test_metrics["calibration"] < 1.6
    assert bundle.manifest.metrics["constant"]["information"] == pytest.approx(0, abs=0.02)
    every = predict_all({"b": bundle}, clicks, (TRAIN, VALIDATION, TEST))
    whole = evaluate(every.probabilities["b"], every.label)
    assert 0.6 < whole.calibration < 1.6
    assert every.probabilities["b"].mean() < 0.5 * every.label[kept].mean()


@pytest.mark.long
def test_the_real_books_beat_logistic_regression(shared_data: Path, tmp_path: Path) -> None:
    """Data README: logistic regression on user and book has AUC 0.793 on a random tenth."""
    schema = load_schema("bookcrossing")
    reader = open_data(shared_data / "bookcrossing" / "ratings.parquet", schema)
    training = default_recipe_file(schema).with_recipe({"refit": False})
    test = Learner(reader, schema, training).learn(tmp_path / "b").manifest.metrics["test"]
    assert np.greater_equal(test["auc"], 0.803)


@pytest.mark.long
def test_the_real_data_reach_gradient_boosting(shared_data: Path, tmp_path: Path) -> None:
    """Data README: gradient boosting has AUC 0.853, log-loss 0.1282, MRR 0.609; a gross loss shows here."""
    schema = load_schema("trivago")
    reader = open_data(shared_data / "trivago" / "impressions.parquet", schema)
    test = Learner(reader, schema, default_recipe_file(schema)).learn(tmp_path / "b").manifest.metrics["test"]
    assert test["rows"] == 62_488
    assert np.greater_equal(test["auc"], 0.850)
    assert np.less_equal(test["log_loss"], 0.1302)


def test_batch_norms_are_folded_into_the_bundle(clicks: Path, tmp_path: Path) -> None:
    """Three layers, Mish and batch norm, as published; the bundle predicts what was measured."""
    schema = load_schema("trivago")
    reader = open_data(clicks, schema)
    encoding = Encoding(k=16, hidden=(16, 8, 8), activation="mish", batch_norm=True)
    training = RecipeFile(
        architecture=Architecture(width=4, bottom=(8,), top=(8,), interaction="cat"),
        recipe=Recipe(epochs=1, batch_rows=512),
        encoding=encoding,
    )
    for kind in ("dhe", "hybrid"):
        bundle = Learner(reader, schema, training, kind).learn(tmp_path / kind)
        assert bundle.manifest.representation.encoding == encoding
        with encode(reader, bundle.encoder, fit_splitter(reader, schema), (TEST,)) as data:
            quality = evaluate(predict_rows(open_runtime("torch", bundle), data), data.label, data.group)
        measured = bundle.manifest.metrics["test"]
        assert quality.log_loss == pytest.approx(measured["log_loss"], rel=1e-4)
        assert quality.auc == pytest.approx(measured["auc"], rel=1e-4)


def test_the_default_beats_the_baselines_where_most_items_are_new(shared_data: Path, tmp_path: Path) -> None:
    """The first 20,000 rows of trivago: 74% of the items of later rows are unseen.

    Features of the request need no ids: with them, the AUC of the regression is as good on so few rows.
    """
    table = pq.read_table(shared_data / "trivago" / "impressions.parquet").slice(0, 20_000)
    pq.write_table(table, tmp_path / "few.parquet")
    whole = load_schema("trivago")
    ids_only = Schema.model_validate(whole.model_dump() | {"request": ()})
    for name, schema in (("ids", ids_only), ("request", whole)):
        reader = open_data(tmp_path / "few.parquet", schema)
        metrics = Learner(reader, schema, RecipeFile()).learn(tmp_path / name).manifest.metrics
        assert not [w for w in shortfalls(metrics) if name == "ids" or "log-loss" in w]


@pytest.mark.long
def test_nested_widths_of_movielens_are_a_ladder(shared_data: Path, tmp_path: Path) -> None:
    schema = load_schema("ml1m")
    ratings = pq.read_table(shared_data / "ml1m" / "ratings.parquet")
    # all of them take ten minutes where a core is slow
    some = np.random.default_rng(0).random(ratings.num_rows) < 0.3
    pq.write_table(ratings.filter(pa.array(some)), tmp_path / "some.parquet")
    reader = open_data(tmp_path / "some.parquet", schema)
    learner = Learner(reader, schema, default_recipe_file(schema), baselines=False)
    ladder = learner.learn(tmp_path / "b").by_width()
    assert [view.width for view in ladder] == [8, 16, 32, 64]
    assert np.greater_equal(ladder[-1].test_metrics["auc"], 0.79)
    assert ladder[0].test_metrics["information"] < ladder[-1].test_metrics["information"]


@pytest.mark.long
def test_the_default_needs_no_tuning_on_movielens(shared_data: Path, tmp_path: Path) -> None:
    schema = load_schema("ml1m")
    reader = open_data(shared_data / "ml1m" / "ratings.parquet", schema)
    metrics = Learner(reader, schema, RecipeFile()).learn(tmp_path / "b").manifest.metrics
    assert np.greater_equal(metrics["test"]["auc"], 0.815)
    assert shortfalls(metrics) == []
