from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.models.bundle.derive import materialize, quantize_bundle
from polyrec.models.bundle.reorder import reordered
from polyrec.models.data.reader import open_data
from polyrec.models.dlrm.dlrm import Architecture
from polyrec.models.dlrm.precision import Precision
from polyrec.models.dlrm.representation import KINDS, Representation
from polyrec.models.embeddings.computed import Encoding
from polyrec.models.errors import BundleError
from polyrec.models.runtimes import open_runtime
from polyrec.models.schema.batch import F32, I64
from polyrec.models.schema.schema import load_schema
from polyrec.models.schema.vocabulary import ids_of_ranks
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import Recipe, RecipeFile, Select


@pytest.fixture(scope="module")
def family(clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """One small trained bundle of each representation, and a select that stores parts of tables."""
    schema = load_schema("trivago")
    folder = tmp_path_factory.mktemp("family")
    reader = open_data(clicks, schema)

    def learn(kind: str, select: Select, name: str) -> Bundle:
        training = RecipeFile(
            architecture=Architecture(width=8, bottom=(16,), top=(32,), interaction="dot"),
            recipe=Recipe(epochs=1, batch_rows=512),
            encoding=Encoding(k=32, hidden=(16,)),
            select=select,
        )
        return Learner(reader, schema, training, kind).learn(folder / name)

    found = {kind: learn(kind, Select(largest=2), kind) for kind in KINDS}
    return found | {"parts": learn("select", Select(share=0.3), "parts")}


@pytest.fixture(scope="module")
def rows(clicks: Path) -> pa.RecordBatch:
    schema = load_schema("trivago")
    return next(iter(open_data(clicks, schema).batches(schema.columns, 2000)))


def random_accesses(bundle: Bundle, seed: int = 1) -> dict[str, I64]:
    """Lookups in the order of stable ids, with ties and rows never looked up."""
    random = np.random.default_rng(seed)
    return {t: random.poisson(1.5, v.rows) for t, v in bundle.encoder.vocabularies.items()}


def predicted(bundle: Bundle, rows: pa.RecordBatch) -> F32:
    return open_runtime("torch", bundle).predict(bundle.encoder.from_arrow(rows))


def in_new_order(bundle: Bundle, accesses: dict[str, I64], out: Path) -> Bundle:
    model, encoder = reordered(bundle, accesses)
    return write_bundle(out, model, bundle.manifest.representation, encoder, {}, {})


def hot(bundle: Bundle, stored: int, out: Path) -> Bundle:
    model, representation = materialize(bundle, stored)
    return write_bundle(out, model, representation, bundle.encoder, {}, {})


def quantized(bundle: Bundle, precision: Precision, out: Path) -> Bundle:
    model, representation = quantize_bundle(bundle, precision)
    return write_bundle(out, model, representation, bundle.encoder, {}, {})


@pytest.mark.parametrize("kind", KINDS)
def test_every_representation_predicts_the_same_in_the_new_order(
    kind: str, family: dict[str, Bundle], rows: pa.RecordBatch, tmp_path: Path
) -> None:
    accesses = random_accesses(family[kind])
    new = in_new_order(family[kind], accesses, tmp_path / "new")
    np.testing.assert_allclose(predicted(new, rows), predicted(family[kind], rows), atol=1e-6)
    for table, vocabulary in new.encoder.vocabularies.items():
        before = family[kind].encoder.vocabularies[table]
        assert (np.diff(vocabulary.counts) <= 0).all()
        np.testing.assert_array_equal(vocabulary.counts[vocabulary.rank_of_id], accesses[table])
        assert vocabulary.values == before.values
        # equally accessed rows keep their order
        ids = ids_of_ranks(vocabulary.rank_of_id)
        same = np.diff(vocabulary.counts) == 0
        assert (np.diff(before.rank_of_id[ids])[same] > 0).all()


def test_nested_widths_predict_the_same_in_the_new_order(
    nested: Bundle, rows: pa.RecordBatch, tmp_path: Path
) -> None:
    new = in_new_order(nested, random_accesses(nested), tmp_path / "new")
    for width in nested.widths:
        expected = predicted(nested.at_width(width), rows)
        np.testing.assert_allclose(predicted(new.at_width(width), rows), expected, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["bf16", "int8", "int4"])
def test_quantized_rows_move_without_loss(
    kind: str, precision: Precision, family: dict[str, Bundle], rows: pa.RecordBatch, tmp_path: Path
) -> None:
    small = quantized(family[kind], precision, tmp_path / "small")
    new = in_new_order(small, random_accesses(small), tmp_path / "new")
    assert new.name == small.name
    np.testing.assert_allclose(predicted(new, rows), predicted(small, rows), atol=1e-6)


@pytest.mark.parametrize("kind", ["dhe", "hybrid"])
def test_a_materialized_prefix_holds_the_new_hottest_rows(
    kind: str, family: dict[str, Bundle], rows: pa.RecordBatch, tmp_path: Path
) -> None:
    before = hot(family[kind], 60, tmp_path / "hot")
    new = in_new_order(before, random_accesses(before), tmp_path / "new")
    assert new.manifest.representation == before.manifest.representation
    np.testing.assert_allclose(predicted(new, rows), predicted(before, rows), atol=1e-6)


def test_rows_that_no_decoder_gives_stay_where_they_are(family: dict[str, Bundle], tmp_path: Path) -> None:
    trained = family["parts"]
    with pytest.raises(BundleError, match=r"was trained with the first .* its rows cannot change places"):
        reordered(trained, random_accesses(trained))
    small = quantized(hot(family["dhe"], 60, tmp_path / "hot"), "int8", tmp_path / "small")
    with pytest.raises(BundleError, match=r"in int8, and computes the others.*that it was made from"):
        reordered(small, random_accesses(small))


def test_an_order_that_keeps_the_prefix_is_taken_even_then(
    family: dict[str, Bundle], rows: pa.RecordBatch, tmp_path: Path
) -> None:
    trained = family["parts"]
    assert isinstance(trained.manifest.representation, Representation)
    accesses = {t: v.counts[v.rank_of_id] for t, v in trained.encoder.vocabularies.items()}
    new = in_new_order(trained, accesses, tmp_path / "new")
    np.testing.assert_array_equal(predicted(new, rows), predicted(trained, rows))
