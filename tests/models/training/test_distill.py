from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.models.bundle.derive import quantize_bundle
from polyrec.models.data.encoded import EncodedRows, encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import fit_splitter
from polyrec.models.dlrm.dlrm import DLRM, Architecture, DenseNet, dense_slots, initial_net
from polyrec.models.dlrm.representation import Representation, initial_stage
from polyrec.models.embeddings.computed import Encoding
from polyrec.models.errors import BundleError
from polyrec.models.training.distill import Regression, distill
from polyrec.models.training.recipe import RecipeFile, Select
from polyrec.models.training.trainer import predict, predict_heads

TRAINING = RecipeFile(encoding=Encoding(k=64, hidden=(32,)), select=Select(share=0.3))


@pytest.fixture(scope="module")
def data(bundle: Bundle, clicks: Path) -> EncodedRows:
    reader = open_data(clicks, bundle.manifest.schema_)
    return encode(reader, bundle.encoder, fit_splitter(reader, bundle.manifest.schema_))


@pytest.mark.parametrize("kind", ["dhe", "select"])
def test_computed_vectors_learn_the_rows(kind: str, bundle: Bundle, data: EncodedRows) -> None:
    representation = TRAINING.representation(kind, bundle.encoder.vocabularies)
    rows = np.arange(500)
    expected = predict(bundle.model(), data, rows)
    errors = []
    for steps in (1, 400):
        model, fidelity = distill(bundle, representation, Regression(steps=steps, rows=512))
        errors.append(float(np.abs(predict(model, data, rows) - expected).mean()))
    assert fidelity.explained > 0.5
    assert errors[1] < 0.5 * errors[0]


@pytest.mark.parametrize("interaction", ["dot", "cat", "cross"])
@pytest.mark.parametrize("itself", [False, True])
def test_a_distilled_hybrid_predicts_like_its_table(
    interaction: str, itself: bool, bundle: Bundle, data: EncodedRows, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    stage = bundle.stage()
    shape = Architecture(width=8, bottom=(16,), top=(32,), interaction=interaction, itself=itself)
    net = DenseNet(shape, dense_slots(bundle.manifest.schema_), stage.slots)
    parts = (DLRM(stage, net), bundle.manifest.representation, bundle.encoder, {}, {})
    source = write_bundle(tmp_path / "source", *parts)
    representation = TRAINING.representation("hybrid", source.encoder.vocabularies)
    model, _ = distill(source, representation, Regression(steps=3, rows=64))
    rows = np.arange(200)
    expected = predict(source.model(), data, rows)
    np.testing.assert_allclose(predict(model, data, rows), expected, atol=1e-5)
    out = write_bundle(tmp_path / "hybrid", model, representation, source.encoder, {}, {})
    np.testing.assert_allclose(predict(out.model(), data, rows), expected, atol=1e-5)


def test_stored_rows_are_the_tables_hot_rows(bundle: Bundle) -> None:
    representation = TRAINING.representation("select", bundle.encoder.vocabularies)
    model, _ = distill(bundle, representation, Regression(steps=1, rows=8))
    table = bundle.stage()
    for name, cut in representation.cuts.items():
        base = table.rows.base[name]
        with torch.inference_mode():
            got = model.stage.vectors(np.arange(base, base + cut))
        assert torch.equal(got, table.store.weight[base : base + cut])


def test_only_a_fp32_table_can_be_distilled(bundle: Bundle, tmp_path: Path) -> None:
    model, representation = quantize_bundle(bundle, "int8")
    small = write_bundle(tmp_path / "int8", model, representation, bundle.encoder, {}, {})
    wanted = TRAINING.representation("dhe", bundle.encoder.vocabularies)
    with pytest.raises(BundleError, match="only a fp32 table"):
        distill(small, wanted, Regression(steps=1))


@pytest.mark.parametrize("kind", ["dhe", "hybrid"])
def test_a_nested_table_is_distilled_at_every_width(
    kind: str, bundle: Bundle, data: EncodedRows, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    schema, vocabularies = bundle.manifest.schema_, bundle.encoder.vocabularies
    stage = initial_stage(Representation(), schema, vocabularies, 8, 1, spread=0.5)
    shape = Architecture(widths=(2, 8), bottom=(8,), top=(16,), interaction="cross")
    model = DLRM(stage, initial_net(shape, dense_slots(schema), stage.slots))
    source = write_bundle(tmp_path / "table", model, Representation(), bundle.encoder, {}, {})
    representation = TRAINING.representation(kind, vocabularies)
    made, fidelity = distill(source, representation, Regression(steps=300, rows=512))
    assert made.net.shape == shape
    rows = np.arange(300)
    expected, got = (predict_heads(m, data, rows) for m in (source.model(), made))
    if kind == "hybrid":
        np.testing.assert_allclose(got, expected, atol=1e-6)
    else:
        assert fidelity.explained > 0.3
        for now, then in zip(got, expected, strict=True):
            assert np.corrcoef(now, then)[0, 1] > 0.5
