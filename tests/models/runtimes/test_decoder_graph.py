from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.embeddings.decoder import Activation, Decoders, DecodersByRows
from polyrec.models.runtimes.decoder_graph import decoder_graph, decoder_inputs
from polyrec.models.runtimes.kinds.onnx import open_session
from polyrec.models.schema.batch import F32

BOUND = {"fp32": 2e-5, "int8": 0.05}
"""Largest error of a vector whose numbers have a deviation of 1; K x HIDDEN weights are executed in int8."""
K, HIDDEN = 512, 256


@pytest.mark.parametrize("precision", BOUND)
@pytest.mark.parametrize(("activation", "bounded"), [("relu", True), ("mish", False)])
def test_a_session_decodes_as_the_decoders_do(
    activation: Activation, bounded: bool, precision: DensePrecision
) -> None:
    generator = torch.Generator().manual_seed(0)
    decoders = Decoders(3, K, (HIDDEN,), 8, activation)
    decoders.initialize(generator, [1.0] * 3)
    session = open_session(decoder_graph(decoders, precision, bounded).SerializeToString(), "cpu")

    def decoded(codes: torch.Tensor, counts: list[int]) -> F32:
        out: F32 = session.run(None, decoder_inputs(codes.numpy(), np.array(counts)))[0]
        return out

    @settings(max_examples=20)
    @given(st.lists(st.integers(0, 30), min_size=3, max_size=3))
    def holds(counts: list[int]) -> None:
        codes = torch.rand((sum(counts), K), generator=generator) * 2 - 1
        with torch.inference_mode():
            expected = decoders(codes, np.array(counts)).numpy()
        got = decoded(codes, counts)
        np.testing.assert_allclose(got, expected, rtol=0, atol=BOUND[precision])
        # a vector does not depend on how many others are decoded with it
        row = 0
        for table, count in enumerate(counts):
            if count:
                alone = decoded(codes[row : row + 1], [int(t == table) for t in range(3)])
                np.testing.assert_allclose(alone, got[row : row + 1], rtol=0, atol=1e-5)
            row += count

    holds()


def test_a_single_table_is_decoded() -> None:
    decoders = Decoders(1, 4, (8,), 2)
    decoders.initialize(torch.Generator().manual_seed(0), [1.0])
    session = open_session(decoder_graph(decoders).SerializeToString(), "cpu")
    codes = torch.rand(5, 4)
    with torch.inference_mode():
        expected = decoders(codes, np.array([5]))
    got = session.run(None, decoder_inputs(codes.numpy(), np.array([5])))[0]
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_decoders_of_several_widths_are_decoded() -> None:
    decoders = DecodersByRows(4, [(8,), (3,)], 2, "mish")
    decoders.initialize(torch.Generator().manual_seed(0), [1.0] * 2)
    session = open_session(decoder_graph(decoders).SerializeToString(), "cpu")
    codes = torch.rand(5, 4)
    with torch.inference_mode():
        expected = decoders(codes, np.array([2, 3]))
    got = session.run(None, decoder_inputs(codes.numpy(), np.array([2, 3])))[0]
    np.testing.assert_allclose(got, expected, atol=1e-6)
