from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.bundle.bundle import Bundle, load_bundle, write_bundle
from polyrec.models.data.encoded import EncodedRows, encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import fit_splitter
from polyrec.models.dlrm.dlrm import DLRM, Architecture, DenseNet, dense_slots
from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.errors import RuntimeUnavailable
from polyrec.models.runtimes import best_runtime, open_runtime, predict_rows
from polyrec.models.runtimes.graph_writer import QUANTIZED_FROM
from polyrec.models.runtimes.kinds.torch import KIND
from polyrec.models.schema.batch import Batch
from polyrec.models.tiers.stage import open_tiers
from polyrec.models.tiers.tier_settings import TierSettings
from polyrec.models.training.trainer import predict
from tests.models.executions import FEWER_BITS, RUNTIMES
from tests.models.random_batches import random_batch


@pytest.fixture(scope="module")
def data(bundle: Bundle, clicks: Path) -> EncodedRows:
    reader = open_data(clicks, bundle.manifest.schema_)
    return encode(reader, bundle.encoder, fit_splitter(reader, bundle.manifest.schema_))


@pytest.fixture(scope="module", params=["dot", "cat", "cross"])
def shaped(
    request: pytest.FixtureRequest, bundle: Bundle, tmp_path_factory: pytest.TempPathFactory
) -> Bundle:
    """The bundle's rows under another interaction, with an untrained dense net."""
    torch.manual_seed(3)
    stage = bundle.stage()
    shape = Architecture(width=8, bottom=(16,), top=(32, 8), interaction=request.param, itself=True)
    net = DenseNet(shape, dense_slots(bundle.manifest.schema_), stage.slots)
    out = tmp_path_factory.mktemp(request.param) / "bundle"
    return write_bundle(out, DLRM(stage, net), bundle.manifest.representation, bundle.encoder, {}, {})


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_runtime_reproduces_the_quality_of_training(name: str, bundle: Bundle, data: EncodedRows) -> None:
    expected = predict(bundle.model(), data, np.arange(data.rows))
    got = predict_rows(open_runtime(name, bundle), data, batch_rows=1000)
    np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("name", RUNTIMES)
def test_every_interaction_gives_the_models_numbers(name: str, shaped: Bundle, data: EncodedRows) -> None:
    expected = predict(shaped.model(), data, np.arange(200))
    runtime = open_runtime(name, shaped)
    np.testing.assert_allclose(runtime.predict(data.batch(np.arange(200))), expected, atol=1e-6)


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 5))
def test_runtimes_agree_on_ranking_batches(bundle_dir: Path, seed: int, rows: int, contexts: int) -> None:
    bundle = load_bundle(bundle_dir)
    random = np.random.default_rng(seed)
    table_rows = {t: v.rows for t, v in bundle.encoder.vocabularies.items()}
    batch = random_batch(random, bundle.manifest.schema_, table_rows, rows, contexts)
    torch_says, onnx_says = (
        open_runtime(n, bundle).predict(b) for n, b in (("torch", batch), ("onnx", batch.exploded()))
    )
    np.testing.assert_allclose(torch_says, onnx_says, atol=1e-5)


@pytest.mark.parametrize("name", RUNTIMES)
def test_an_answer_outlives_the_next_batch(name: str, bundle: Bundle, data: EncodedRows) -> None:
    runtime = open_runtime(name, bundle)
    first = runtime.predict(data.batch(np.arange(8)))
    kept = first.copy()
    runtime.predict(data.batch(np.arange(100, 108)))
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize("name", RUNTIMES)
def test_an_empty_batch_gives_no_predictions(name: str, bundle: Bundle, data: EncodedRows) -> None:
    empty: Batch = data.batch(np.empty(0, np.int64))
    assert open_runtime(name, bundle).predict(empty).shape == (0,)


@pytest.mark.parametrize(
    ("name", "device", "reason"),
    [
        ("torch", "teapot", "torch has no device"),
        ("onnx", "teapot", "onnx has no device"),
        ("onnx", "cuda:x", "onnx has no device"),
        ("onnx", "tensorrt:99", "onnx|onnxruntime"),
        ("tea", "cpu", "no runtime 'tea'"),
    ],
)
def test_unavailable_devices_raise_an_error_without_fallback(
    bundle: Bundle, name: str, device: str, reason: str
) -> None:
    with pytest.raises(RuntimeUnavailable, match=reason):
        open_runtime(name, bundle, device)


def test_the_best_runtime_opens(bundle: Bundle) -> None:
    name, device = best_runtime()
    assert open_runtime(name, bundle, device).name == name


@pytest.mark.gpu
def test_cuda_gives_the_cpus_numbers(bundle: Bundle, data: EncodedRows) -> None:
    batch = data.batch(np.arange(500))
    expected = open_runtime("torch", bundle).predict(batch)
    np.testing.assert_allclose(open_runtime("torch", bundle, "cuda:0").predict(batch), expected, atol=1e-5)


@pytest.mark.parametrize("near", [0.0, 0.3])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_rows_in_tiers_give_the_answers_of_rows_in_memory(
    bundle: Bundle, data: EncodedRows, device: str, near: float
) -> None:
    cuts = {}
    for table, v in bundle.encoder.vocabularies.items():
        cuts[table] = {"device": int(near * v.rows), "host": v.rows - int(near * v.rows)}
    stack = open_tiers(bundle, TierSettings.model_validate({"cuts": cuts}), device)
    over, flat = open_runtime("torch", bundle, device, tiers=stack), open_runtime("torch", bundle)
    for rows in (1, 2, 9, 300, 300, 300):
        plain = data.batch(np.arange(rows))
        shared = Batch(plain.context.take(np.arange(1)), plain.candidate, np.zeros(rows, np.int64))
        for batch in (plain, shared):
            np.testing.assert_allclose(over.predict(batch), flat.predict(batch), atol=1e-5)
    stack.close()


@pytest.mark.parametrize(("name", "precision"), FEWER_BITS)
def test_a_dense_net_in_fewer_bits_stays_near_fp32(
    name: str, precision: DensePrecision, wide_dir: Path, data: EncodedRows
) -> None:
    bundle = load_bundle(wide_dir)
    plain = data.batch(np.arange(300))
    shared = Batch(plain.context.take(np.arange(3)), plain.candidate, np.arange(300) % 3)
    exact, rough = open_runtime(name, bundle), open_runtime(name, bundle, precision=precision)
    for batch in (plain, shared):
        got, expected = rough.predict(batch), exact.predict(batch)
        assert got.dtype == np.float32
        assert not np.array_equal(got, expected)
        np.testing.assert_allclose(got, expected, atol=0.03)


def test_in_int8_products_too_small_to_gain_stay_as_they_are(bundle: Bundle, data: EncodedRows) -> None:
    assert max(p.numel() for p in bundle.net().parameters()) < QUANTIZED_FROM
    batch = data.batch(np.arange(300))
    exact, rough = (open_runtime("onnx", bundle, precision=p) for p in ("fp32", "int8"))
    np.testing.assert_allclose(rough.predict(batch), exact.predict(batch), atol=1e-6)


@pytest.mark.parametrize(("name", "precision"), [("torch", "int8"), ("onnx", "bf16")])
def test_an_unsupported_precision_is_reported(name: str, precision: str, bundle: Bundle) -> None:
    with pytest.raises(RuntimeUnavailable, match=f"no dense precision '{precision}'"):
        open_runtime(name, bundle, precision=precision)


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA")
def test_a_torch_without_cuda_is_named(bundle: Bundle) -> None:
    why = "torch has no device 'cuda:0': this is the build of torch for CPUs"
    with pytest.raises(RuntimeUnavailable, match=why):
        open_runtime("torch", bundle, "cuda:0")
    assert why in str(KIND.probe("cuda:0"))
