from __future__ import annotations

import numpy as np
import pytest
import torch

from polyrec.models.runtimes import graph_writer
from polyrec.models.runtimes.graph_writer import QUANTIZED_FROM, GraphWriter
from polyrec.models.runtimes.kinds.onnx import open_session
from polyrec.models.schema.batch import F32

INPUTS, OUTPUTS = 512, QUANTIZED_FROM // 512


def product_int8(x: F32, weight: torch.Tensor) -> F32:
    graph = GraphWriter("int8")
    y = graph.product(graph.input("x", "rows", INPUTS), weight)
    model = graph.model(graph.node("Identity", y, output="y"), "rows", OUTPUTS)
    out: F32 = open_session(model.SerializeToString(), "cpu").run(None, {"x": x})[0]
    return out


def test_the_largest_sums_are_exact_on_every_machine() -> None:
    x = np.ones((3, INPUTS), np.float32)
    for sign in (1.0, -1.0):
        got = product_int8(x, torch.full((OUTPUTS, INPUTS), sign))
        np.testing.assert_allclose(got, sign * INPUTS, rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_weights_moved_by_128_give_the_same_sums(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compares both forms where neither saturates: weights of at most half the range."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((5, INPUTS)).astype(np.float32)
    weight = torch.from_numpy(random.uniform(-0.5, 0.5, (OUTPUTS, INPUTS)).astype(np.float32))
    weight[:, 0] = 1.0  # the largest of each column: all others are below half of it
    x[:, 0] = 0.0
    found = []
    for moved in (False, True):
        monkeypatch.setattr(graph_writer, "saturates", lambda moved=moved: moved)
        found.append(product_int8(x, weight))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6, atol=1e-6)
