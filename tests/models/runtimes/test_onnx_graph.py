"""The three graphs of a dense net compute what `DenseNet` does, for every interaction and split of roles."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrec.models.dlrm.dlrm import DenseNet, Inputs
from polyrec.models.embeddings.stage import PerBlock
from polyrec.models.runtimes.kinds.onnx import open_session
from polyrec.models.runtimes.onnx_graph import plain_graph, ranking_graph
from polyrec.models.schema.batch import F32
from tests.models.dlrm.test_context_once import INTERACTIONS, random_inputs, random_net


def run(graph: bytes, inputs: Inputs) -> F32:
    session = open_session(graph, "cpu")
    arrays = {i.name: getattr(inputs, i.name).numpy() for i in session.get_inputs()}
    out: F32 = session.run(None, arrays)[0]
    return out


def reference(net: DenseNet, inputs: Inputs) -> F32:
    with torch.inference_mode():
        return net(inputs).sigmoid().numpy()  # type: ignore[no-any-return]


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10_000),
    interaction=st.sampled_from(INTERACTIONS),
    itself=st.booleans(),
    top=st.sampled_from([(), (6,), (6, 5)]),
    dense=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    slots=st.tuples(st.integers(1, 4), st.integers(1, 5)),
    rows=st.integers(1, 40),
    contexts=st.integers(1, 4),
)
def test_graphs_compute_the_dense_net(
    seed: int,
    interaction: str,
    itself: bool,
    top: tuple[int, ...],
    dense: tuple[int, int],
    slots: tuple[int, int],
    rows: int,
    contexts: int,
) -> None:
    net = random_net(seed, interaction, itself, top, PerBlock(*dense), PerBlock(*slots))
    many = random_inputs(seed, PerBlock(*dense), PerBlock(*slots), rows, contexts)
    assert many.context_row is not None
    expected = reference(net, many)
    own = Inputs(many[0][many.context_row], many[1], many[2][many.context_row], many[3], None)
    np.testing.assert_allclose(run(plain_graph(net).SerializeToString(), own), expected, atol=1e-5)
    ranking = ranking_graph(net).SerializeToString()
    np.testing.assert_allclose(run(ranking, many), expected, atol=1e-5)
    if interaction == "cross":
        return
    one_context = ranking_graph(net, one_context=True).SerializeToString()
    for context in range(contexts):
        of = many.context_row == context
        if of.any():
            one = Inputs(many[0][context, None], many[1][of], many[2][context, None], many[3][of], None)
            np.testing.assert_allclose(run(one_context, one), expected[of.numpy()], atol=1e-5)


def test_a_graph_of_one_context_has_no_rows_of_contexts() -> None:
    net = random_net(0, "dot", False, (6,), PerBlock(1, 1), PerBlock(2, 2))
    names = {i.name for i in ranking_graph(net, one_context=True).graph.input}
    assert names == {"dense_context", "dense_candidate", "context", "candidate"}
    assert names | {"context_row"} == {i.name for i in ranking_graph(net).graph.input}
    with pytest.raises(ValueError, match="both roles"):
        ranking_graph(random_net(0, "dot", False, (6,), PerBlock(1, 1), PerBlock(0, 2)))
