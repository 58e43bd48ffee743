from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.models.bundle.derive import materialize, quantize_bundle
from polyrec.models.data.encoded import EncodedRows, encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import fit_splitter
from polyrec.models.dlrm.dlrm import Architecture
from polyrec.models.dlrm.precision import Precision
from polyrec.models.dlrm.representation import KINDS
from polyrec.models.embeddings.computed import Encoding
from polyrec.models.embeddings.store import bytes_per_row
from polyrec.models.errors import BundleError
from polyrec.models.runtimes import open_runtime
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import Recipe, RecipeFile, Select
from tests.models.executions import RUNTIMES

BY_ROWS = "hybrid by rows"
"""A hybrid whose tables have decoders of different widths."""


@pytest.fixture(scope="module")
def family(clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """One small trained bundle of each representation."""
    schema = load_schema("trivago")
    training = RecipeFile(
        architecture=Architecture(width=8, bottom=(16,), top=(32,), interaction="dot"),
        recipe=Recipe(epochs=1, batch_rows=512),
        encoding=Encoding(k=32, hidden=(16,)),
        select=Select(largest=2),
    )
    folder = tmp_path_factory.mktemp("family")
    reader = open_data(clicks, schema)
    narrow = training.model_copy(update={"encoding": Encoding(k=32, hidden=(64,), by_rows=True)})
    made = {kind: Learner(reader, schema, training, kind).learn(folder / kind) for kind in KINDS}
    return {**made, BY_ROWS: Learner(reader, schema, narrow, "hybrid").learn(folder / BY_ROWS)}


@pytest.fixture(scope="module")
def data(family: dict[str, Bundle], clicks: Path) -> EncodedRows:
    bundle = family["table"]
    reader = open_data(clicks, bundle.manifest.schema_)
    return encode(reader, bundle.encoder, fit_splitter(reader, bundle.manifest.schema_))


@pytest.mark.parametrize("kind", [*KINDS, BY_ROWS])
def test_every_representation_runs_alike_in_every_runtime(
    kind: str, family: dict[str, Bundle], data: EncodedRows
) -> None:
    batch = data.batch(np.arange(300))
    first, *others = (open_runtime(name, family[kind]).predict(batch) for name in RUNTIMES)
    for other in others:
        np.testing.assert_allclose(other, first, atol=1e-5)
    assert first.std() > 0


@pytest.mark.parametrize("rows", [None, 0, 7, 2000, 10**9])
@pytest.mark.parametrize("kind", ["dhe", "select", "hybrid", BY_ROWS])
def test_materialized_vectors_give_the_same_predictions(
    kind: str, rows: int | None, family: dict[str, Bundle], data: EncodedRows, tmp_path: Path
) -> None:
    source = family[kind]
    model, representation = materialize(source, rows)
    out = write_bundle(tmp_path / "out", model, representation, source.encoder, {}, {})
    batch = data.batch(np.arange(300))
    expected = open_runtime("torch", source).predict(batch)
    np.testing.assert_allclose(open_runtime("torch", out).predict(batch), expected, atol=1e-5)
    if rows is None and representation.kind != "hybrid":
        assert out.name == "table"


def test_the_hottest_rows_are_the_ones_materialized(family: dict[str, Bundle]) -> None:
    _, representation = materialize(family["dhe"], 50)
    vocabularies = family["dhe"].encoder.vocabularies
    stored = np.concatenate([vocabularies[t].counts[:n] for t, n in representation.cuts.items()])
    left = np.concatenate([v.counts[representation.cuts.get(t, 0) :] for t, v in vocabularies.items()])
    assert stored.size == 50
    assert stored.min() >= left.max()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["bf16", "int8", "int4"])
def test_quantised_rows_stay_near_the_originals_predictions(
    kind: str, precision: Precision, family: dict[str, Bundle], data: EncodedRows, tmp_path: Path
) -> None:
    source = family[kind]
    model, representation = quantize_bundle(source, precision)
    out = write_bundle(tmp_path / "out", model, representation, source.encoder, {}, {})
    assert out.name == f"{kind}-{precision}"
    batch = data.batch(np.arange(300))
    expected = open_runtime("torch", source).predict(batch)
    got = [open_runtime(name, out).predict(batch) for name in RUNTIMES]
    for other in got[1:]:
        np.testing.assert_allclose(other, got[0], atol=1e-5)
    assert np.abs(got[0] - expected).max() < {"bf16": 0.01, "int8": 0.02, "int4": 0.15}[precision]
    if kind == "table":
        rows = sum(v.rows for v in source.encoder.vocabularies.values())
        saved = (bytes_per_row(8, "fp32") - bytes_per_row(8, precision)) * rows
        assert abs(source.bytes - out.bytes - saved) < 100


def test_impossible_derivations_are_reported(family: dict[str, Bundle], tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="nothing to materialize"):
        materialize(family["table"])
    for kind in ("dhe", "hybrid"):
        model, representation = quantize_bundle(family[kind], "int8")
        small = write_bundle(tmp_path / kind, model, representation, family[kind].encoder, {}, {})
        with pytest.raises(BundleError, match="materialize first"):
            materialize(small)
        with pytest.raises(BundleError, match="quantize from fp32"):
            quantize_bundle(small, "int4")
