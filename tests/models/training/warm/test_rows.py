from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TRAIN, fit_splitter
from polyrec.models.runtimes import open_runtime
from polyrec.models.schema.continuation import NEW, PreviousVocabularies, old_ranks
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.popularity import calibrate
from polyrec.models.training.warm.rows import continued_model, continued_representation, stored_in_part

NAMES = ("table", "dhe", "select", "hybrid", "parts", "nested")


def continued_encoder(bundle: Bundle, data: Path, forget: int | None = None) -> Encoder:
    schema = bundle.manifest.schema_
    reader = open_data(data, schema)
    previous = PreviousVocabularies(bundle.encoder.vocabularies, forget, stored_in_part(bundle))
    found = calibrate(reader, schema, fit_splitter(reader, schema), which=(TRAIN,), previous=previous)
    return Encoder(schema, found.vocabularies, bundle.encoder.standards)


def rows_of_known_ids(bundle: Bundle, clicks: Path) -> pa.RecordBatch:
    schema = bundle.manifest.schema_
    return next(iter(open_data(clicks, schema).batches(schema.columns, 3000)))


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_more_ids_predicts_for_known_ones_as_before(
    family: dict[str, Bundle], clicks: Path, later: Path, tmp_path: Path, name: str
) -> None:
    """Compares rows of ids that both know: one that was unknown may have a row now."""
    bundle = family[name]
    encoder = continued_encoder(bundle, later)
    rows = rows_of_known_ids(bundle, clicks)
    before = bundle.encoder.from_arrow(rows)
    of_new_vocabulary = encoder.from_arrow(rows)
    same = np.ones(before.rows, bool)
    for block, other in (
        (before.context, of_new_vocabulary.context),
        (before.candidate, of_new_vocabulary.candidate),
    ):
        assert block.ranks.shape == other.ranks.shape
    for feature in bundle.manifest.schema_.categorical:
        was, now = (e.vocabulary(feature) for e in (bundle.encoder, encoder))
        column = rows.column(feature.name)
        unknown = was.encode_arrow(column.flatten() if feature.multi else column) == was.oov_rank
        found = now.encode_arrow(column.flatten() if feature.multi else column) != now.oov_rank
        entered = unknown & found
        if feature.multi:
            of = np.repeat(
                np.arange(before.rows), column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
            )
            same[of[entered]] = False
        else:
            same[entered] = False
    assert same.sum() > 500
    model = continued_model(bundle, encoder.vocabularies, 0, None).eval()
    representation = continued_representation(bundle, encoder.vocabularies)
    made = write_bundle(tmp_path / name, model, representation, encoder, {}, {})
    assert made.encoder.vocabularies["item"].rows > bundle.encoder.vocabularies["item"].rows
    for view, now_view in zip((bundle, *bundle.by_width()), (made, *made.by_width()), strict=True):
        old, new = (open_runtime("torch", b).predict(b.encoder.from_arrow(rows)) for b in (view, now_view))
        np.testing.assert_allclose(new[same], old[same], atol=1e-6)
        if name != "nested":
            np.testing.assert_allclose(
                open_runtime("onnx", made).predict(made.encoder.from_arrow(rows)), new, atol=1e-5
            )


def test_new_rows_are_drawn_as_training_draws_them(family: dict[str, Bundle], later: Path) -> None:
    bundle = family["table"]
    encoder = continued_encoder(bundle, later)
    model = continued_model(bundle, encoder.vocabularies, 0, 0.25)
    was, now = bundle.encoder.vocabularies["item"], encoder.vocabularies["item"]
    new = old_ranks(was, now) == NEW
    (weight,) = model.stage.sparse_parameters()
    rows = weight.detach()[model.stage.rows.slice_of("item")][torch.from_numpy(new)]
    assert new.sum() > 20
    assert 0.2 < rows.abs().max() <= 0.25
    assert abs(float(rows.mean())) < 0.05


def test_a_chain_of_warm_starts_keeps_computed_vectors(
    family: dict[str, Bundle], clicks: Path, later: Path, tmp_path: Path
) -> None:
    first = family["dhe"]
    bundle = first
    for number, data in enumerate((later, clicks)):
        encoder = continued_encoder(bundle, data)
        model = continued_model(bundle, encoder.vocabularies, 0, None).eval()
        representation = continued_representation(bundle, encoder.vocabularies)
        bundle = write_bundle(tmp_path / str(number), model, representation, encoder, {}, {})
    values = first.encoder.vocabularies["item"].values
    vectors = []
    for b in (first, bundle):
        stage = b.stage()
        rows = stage.rows.base["item"] + b.encoder.vocabularies["item"].encode_arrow(values)
        order = np.argsort(rows)
        found = np.empty((rows.size, stage.width), np.float32)
        found[order] = stage.vectors(rows[order]).detach().numpy()
        vectors.append(found)
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)
    assert bundle.manifest.representation.first_rows == {
        t: v.rows for t, v in first.encoder.vocabularies.items()
    }
