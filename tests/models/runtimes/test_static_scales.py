"""int8 with static scales against a slow reference, and independent of the rows in a batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.models.dlrm import activations
from polyrec.models.dlrm.activations import observe_activations
from polyrec.models.dlrm.dlrm import inputs_of
from polyrec.models.runtimes import graph_writer
from polyrec.models.runtimes.graph_writer import STATIC_FROM, GraphWriter
from polyrec.models.runtimes.kinds.onnx import OnnxRuntime, open_session
from polyrec.models.runtimes.saturation import saturates
from polyrec.models.schema.batch import F32, I64, Batch
from tests.models.random_batches import random_batch

INPUTS, OUTPUTS = 256, STATIC_FROM // 256


def quantized_product(x: F32, weight: F32, bias: F32, largest: float, positive: bool) -> F32:
    """The product by the definition: saturated levels of x, levels of each column of weights."""
    levels, zero = (255, 0) if positive else (127, 128)
    step = np.float32(largest / levels)
    q = np.clip(np.rint(x / step) + zero, 0, 255) - zero
    scale = (np.abs(weight).max(axis=1) / 127).astype(np.float32)
    rounded = np.clip(np.rint(weight / scale[:, None]), -127, 127)
    sums = np.array([[float(row @ column) for column in rounded] for row in q])
    out: F32 = (sums * step * scale + bias).astype(np.float32)
    return out


def product(x: F32, layer: nn.Linear, largest: float, positive: bool) -> F32:
    graph = GraphWriter("int8", {layer: largest})
    given = graph.input("x", "rows", INPUTS)
    if positive:
        graph.rectified.add(given)
    y = graph.node("Identity", graph.linear(given, layer), output="y")
    model = graph.model(y, "rows", OUTPUTS)
    assert not any(node.op_type == "ReduceMax" for node in model.graph.node)
    out: F32 = open_session(model.SerializeToString(), "cpu").run(None, {"x": x})[0]
    return out


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_product_is_that_of_saturated_levels(
    seed: int, positive: bool, moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if saturates() and not moved:
        pytest.skip("sums of signed weights saturate on this processor, so the server does not use them")
    monkeypatch.setattr(graph_writer, "saturates", lambda: moved)
    random = np.random.default_rng(seed)
    x = random.standard_normal((7, INPUTS)).astype(np.float32)
    x[0] *= 100  # beyond the largest input that was seen
    x = np.abs(x) if positive else x
    layer = nn.Linear(INPUTS, OUTPUTS)
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    weight[:, 1:] *= 0.25  # levels far from those at which sums of signed weights saturate
    got = product(x, layer, 3.0, positive)
    np.testing.assert_allclose(got, quantized_product(x, weight, bias, 3.0, positive), rtol=1e-5, atol=1e-5)


def calibrated(bundle: Bundle, folder: Path) -> Bundle:
    """The same bundle with the largest inputs over random rows."""
    model = bundle.model()
    sizes = {table: v.rows for table, v in bundle.encoder.vocabularies.items()}
    batches = [
        random_batch(np.random.default_rng(seed), bundle.manifest.schema_, sizes, 64, 4) for seed in range(16)
    ]
    seen = observe_activations(model, lambda rows: Batch.concat([batches[i] for i in rows]), np.arange(16))
    manifest = bundle.manifest
    return write_bundle(
        folder / "calibrated", model, manifest.representation, bundle.encoder, {}, {}, activations=seen
    )


def test_every_row_has_the_same_probability_in_any_batch(
    made: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All products are quantized, however small."""
    monkeypatch.setattr(graph_writer, "STATIC_FROM", 0)
    bundle = calibrated(made, tmp_path)
    runtime = OnnxRuntime(bundle, precision="int8")
    sizes = {table: v.rows for table, v in bundle.encoder.vocabularies.items()}
    schema = bundle.manifest.schema_
    for seed in range(5):
        random = np.random.default_rng(100 + seed)
        honest = random_batch(random, schema, sizes, 5, 1).exploded()
        hostile = random_batch(random, schema, sizes, 9, 1).exploded()
        hostile.candidate.dense[:] *= 1e6
        alone = runtime.predict(honest)
        beside = runtime.predict(Batch.concat([hostile, honest]))[hostile.rows :]
        np.testing.assert_allclose(beside, alone, rtol=0, atol=1e-6)


def test_probabilities_are_near_those_of_the_model(
    made: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_writer, "STATIC_FROM", 0)
    bundle = calibrated(made, tmp_path)
    model, runtime = bundle.model(), OnnxRuntime(bundle, precision="int8")
    sizes = {table: v.rows for table, v in bundle.encoder.vocabularies.items()}
    for seed in range(5):
        batch = random_batch(np.random.default_rng(seed), bundle.manifest.schema_, sizes, 40, 3)
        with torch.inference_mode():
            expected = model(batch).sigmoid().numpy()
        for form in (batch, batch.exploded()):
            np.testing.assert_allclose(runtime.predict(form), expected, rtol=0, atol=0.05)


def test_the_largest_inputs_are_those_of_the_rows(made: Bundle) -> None:
    model = made.model()
    sizes = {table: v.rows for table, v in made.encoder.vocabularies.items()}
    batch = random_batch(np.random.default_rng(0), made.manifest.schema_, sizes, 64, 4).exploded()
    seen = observe_activations(model, lambda _rows: batch, np.arange(64))
    assert seen is not None
    assert seen.rows == 64
    inputs = inputs_of(batch, model.stage(batch))
    x = torch.cat((inputs.dense_context, inputs.dense_candidate), dim=1)
    bottom = model.net.heads[-1].bottom
    assert bottom is not None
    with torch.inference_mode():
        for i, layer in enumerate(bottom):
            if isinstance(layer, nn.Linear):
                assert seen.largest[f"bottom.{i}"] == pytest.approx(float(x.abs().max()))
            x = layer(x)
    layers = {name for name, layer in model.net.named_modules() if isinstance(layer, nn.Linear)}
    assert seen.largest.keys() == layers


def test_a_share_of_the_numbers_may_be_larger(made: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "BATCH_ROWS", 7)
    model = made.model()
    sizes = {table: v.rows for table, v in made.encoder.vocabularies.items()}
    random = np.random.default_rng(0)
    rows = [random_batch(random, made.manifest.schema_, sizes, 1, 1) for _ in range(64)]
    whole = Batch.concat([row.exploded() for row in rows])

    def batch(chosen: I64) -> Batch:
        return Batch.concat([rows[i].exploded() for i in chosen])

    seen = observe_activations(model, batch, np.arange(64), beyond=0.01)
    assert seen is not None
    inputs = inputs_of(whole, model.stage(whole))
    numbers = torch.cat((inputs.dense_context, inputs.dense_candidate), dim=1).abs().flatten().sort().values
    assert seen.largest["bottom.0"] == pytest.approx(float(numbers[-1 - int(0.01 * numbers.numel())]))


def test_no_rows_give_no_ranges(made: Bundle) -> None:
    rows = np.empty(0, np.int64)
    assert observe_activations(made.model(), lambda _rows: pytest.fail("there are no rows"), rows) is None
