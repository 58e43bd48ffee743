"""A nested width equals a plain model of the first columns, for every representation, precision, runtime."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from polyrec.models.bundle.bundle import Bundle, load_bundle, write_bundle
from polyrec.models.bundle.derive import materialize, quantize_bundle
from polyrec.models.bundle.weights import open_weights
from polyrec.models.dlrm.dlrm import DLRM, Architecture, dense_slots, initial_net
from polyrec.models.dlrm.precision import DensePrecision, Precision
from polyrec.models.dlrm.representation import KINDS, Representation, RepresentationKind, initial_stage
from polyrec.models.embeddings.computed import Encoding
from polyrec.models.embeddings.store import FloatRows
from polyrec.models.embeddings.table import TableStage
from polyrec.models.errors import BundleError
from polyrec.models.runtimes import open_runtime
from polyrec.models.schema.batch import Batch
from tests.models.random_batches import random_batch

WIDTHS = (2, 6, 16)


def nested(
    bundle: Bundle,
    kind: RepresentationKind,
    folder: Path,
    precision: Precision = "fp32",
    by_rows: bool = False,
) -> Bundle:
    """An untrained nested model over the vocabularies of `bundle`."""
    schema, vocabularies = bundle.manifest.schema_, bundle.encoder.vocabularies
    encoding = None if kind == "table" else Encoding(k=16, hidden=(32,) if by_rows else (8,), by_rows=by_rows)
    stored = {} if kind == "table" else {t: v.rows // 2 for t, v in vocabularies.items()}
    representation = Representation(kind=kind, encoding=encoding, cuts=stored)
    torch.manual_seed(1)
    stage = initial_stage(representation, schema, vocabularies, WIDTHS[-1], 1, spread=0.5)
    shape = Architecture(widths=WIDTHS, bottom=(24,), top=(600, 64), interaction="cross", cross_layers=2)
    net = initial_net(shape, dense_slots(schema), stage.slots)
    written = write_bundle(folder / "whole", DLRM(stage, net), representation, bundle.encoder, {}, {})
    if precision == "fp32":
        return written
    model, quantized = quantize_bundle(written, precision)
    return write_bundle(folder / precision, model, quantized, bundle.encoder, {}, {})


def batches(bundle: Bundle) -> list[Batch]:
    """A plain and a ranking batch."""
    random = np.random.default_rng(5)
    rows = {t: v.rows for t, v in bundle.encoder.vocabularies.items()}
    return [random_batch(random, bundle.manifest.schema_, rows, 60, contexts) for contexts in (None, 4)]


def reference(whole: Bundle, at: int, batch: Batch) -> np.ndarray:
    """Gathers or computes whole vectors, cuts them, and applies the head of the width."""
    with torch.inference_mode():
        return whole.model().logits(batch)[at].sigmoid().numpy()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
@pytest.mark.parametrize(("kind", "by_rows"), [*((kind, False) for kind in KINDS), ("dhe", True)])
def test_a_width_is_a_plain_model_of_the_first_columns(
    kind: RepresentationKind, by_rows: bool, precision: Precision, bundle: Bundle, tmp_path: Path
) -> None:
    whole = nested(bundle, kind, tmp_path, precision, by_rows)
    assert [view.width for view in whole.by_width()] == [*WIDTHS]
    weights = open_weights(whole.files, whole.manifest.version)
    widest = open_runtime("onnx", whole)
    for at, view in enumerate(whole.by_width()):
        torch_, onnx = (open_runtime(name, view) for name in ("torch", "onnx"))
        alone = open_runtime("torch", weights.at_width(view.width))
        for batch in batches(bundle):
            expected = reference(whole, at, batch)
            for runtime in (torch_, onnx, alone):
                np.testing.assert_allclose(runtime.predict(batch), expected, rtol=0, atol=2e-6)
            if view.width == WIDTHS[-1]:
                np.testing.assert_array_equal(widest.predict(batch), onnx.predict(batch))


@pytest.mark.parametrize(("runtime", "precision"), [("torch", "bf16"), ("onnx", "int8")])
def test_nets_of_other_precisions_equal_those_of_the_plain_model(
    runtime: str, precision: DensePrecision, bundle: Bundle, tmp_path: Path
) -> None:
    whole = nested(bundle, "table", tmp_path, "int8")
    for view in whole.by_width():
        assert view.width is not None
        plain = plain_model(whole, view.width, tmp_path / f"plain{view.width}")
        for batch in batches(bundle):
            np.testing.assert_array_equal(
                open_runtime(runtime, view, "cpu", precision).predict(batch),
                open_runtime(runtime, plain, "cpu", precision).predict(batch),
            )


def plain_model(whole: Bundle, width: int, folder: Path) -> Bundle:
    """A bundle without nested widths: the first columns of all rows in fp32, and the head of the width."""
    stage = whole.stage()
    assert isinstance(stage, TableStage)
    rows = stage.store.gather(torch.arange(stage.rows.total)).detach()[:, :width].clone()
    sizes = dict(zip(stage.rows.tables, stage.rows.sizes, strict=True))
    model = DLRM(TableStage(whole.manifest.schema_, sizes, rows), whole.at_width(width).net())
    return write_bundle(folder, model, Representation(), whole.encoder, {}, {})


def test_widths_share_the_mapped_rows(bundle: Bundle, tmp_path: Path) -> None:
    whole = nested(bundle, "table", tmp_path)
    for view in whole.by_width():
        stage = view.stage()
        assert isinstance(stage, TableStage)
        assert isinstance(stage.store, FloatRows)
        assert stage.store.weight.data_ptr() == whole.rows["store.weight"].data_ptr()
        assert stage.width == view.width
        assert view.rows_bytes == stage.rows.total * 4 * stage.width
    assert whole.bytes < sum(view.bytes for view in whole.by_width())


def test_a_width_becomes_a_plain_bundle(bundle: Bundle, tmp_path: Path) -> None:
    whole = nested(bundle, "select", tmp_path)
    view = whole.at_width(6)
    representation = whole.manifest.representation
    plain = write_bundle(tmp_path / "w6", view.model(), representation, bundle.encoder, {}, {})
    assert plain.manifest.architecture == view.shape
    assert plain.widths == ()
    for batch in batches(bundle):
        np.testing.assert_array_equal(
            open_runtime("onnx", plain).predict(batch), open_runtime("onnx", view).predict(batch)
        )


@pytest.mark.parametrize("rows", [None, 100])
def test_materialized_vectors_keep_the_widths(rows: int | None, bundle: Bundle, tmp_path: Path) -> None:
    whole = nested(bundle, "dhe", tmp_path)
    model, representation = materialize(whole, rows)
    stored = write_bundle(tmp_path / "stored", model, representation, bundle.encoder, {}, {})
    (batch, _) = batches(bundle)
    for at, view in enumerate(stored.by_width()):
        got = open_runtime("torch", view).predict(batch)
        np.testing.assert_allclose(got, reference(whole, at, batch), rtol=0, atol=2e-6)


def test_a_width_that_is_not_there_is_rejected(bundle: Bundle, tmp_path: Path) -> None:
    whole = nested(bundle, "table", tmp_path)
    with pytest.raises(BundleError, match="has no width 4; it has 2, 6, 16"):
        whole.at_width(4)
    with pytest.raises(BundleError, match="has one width, 8, and none nested"):
        bundle.at_width(8)
    assert bundle.by_width() == (bundle,)
    assert whole.at_width(6).by_width()[0].width == 6
    assert load_bundle(whole.path).at_width(6).at_width(None).width is None


def test_int4_rows_need_even_widths(bundle: Bundle, tmp_path: Path) -> None:
    schema, vocabularies = bundle.manifest.schema_, bundle.encoder.vocabularies
    stage = initial_stage(Representation(), schema, vocabularies, 8, 1)
    net = initial_net(Architecture(widths=(3, 8)), dense_slots(schema), stage.slots)
    odd = write_bundle(tmp_path / "odd", DLRM(stage, net), Representation(), bundle.encoder, {}, {})
    with pytest.raises(BundleError, match="a width of 3 is odd"):
        quantize_bundle(odd, "int4")


def test_metrics_of_the_test_rows_are_known_by_width(bundle: Bundle, tmp_path: Path) -> None:
    model = nested(bundle, "table", tmp_path).model()
    metrics = {"test": {"auc": 0.8}, "test.w2": {"auc": 0.7}}
    made = write_bundle(tmp_path / "b", model, Representation(), bundle.encoder, metrics, {})
    assert made.test_metrics == {"auc": 0.8}
    assert made.at_width(2).test_metrics == {"auc": 0.7}
    assert made.at_width(6).test_metrics == {}


def test_a_process_that_opens_a_bundle_does_not_import_the_compiler(bundle_dir: Path) -> None:
    """torch._dynamo takes a second, for which a lane's restart would wait."""
    program = (
        "import sys; from pathlib import Path; from polyrec.models.bundle.bundle import load_bundle; "
        "from polyrec.models.runtimes import open_runtime; "
        "open_runtime('onnx', load_bundle(Path(sys.argv[1])), 'cpu', 'fp32'); "
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(bundle_dir)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
