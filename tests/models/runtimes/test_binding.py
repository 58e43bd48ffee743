from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.dlrm.dlrm import Architecture, DenseNet, Inputs
from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.embeddings.stage import PerBlock
from polyrec.models.errors import RuntimeUnavailable
from polyrec.models.runtimes import open_runtime
from polyrec.models.runtimes.binding import BoundSession
from polyrec.models.runtimes.kinds.onnx import open_session
from polyrec.models.runtimes.onnx_graph import plain_graph, ranking_graph
from polyrec.models.schema.batch import F32
from tests.models.random_batches import random_batch

WIDTH, SLOTS, DENSE = 8, PerBlock(2, 3), PerBlock(2, 4)


def both(inputs: Inputs, precision: DensePrecision) -> tuple[F32, F32]:
    """(by run, by binding)"""
    torch.manual_seed(1)
    net = DenseNet(
        Architecture(width=WIDTH, bottom=(16,), top=(32, 8), interaction="dot"), DENSE, SLOTS
    ).eval()
    graph = plain_graph if inputs.context_row is None else ranking_graph
    session = open_session(graph(net, precision).SerializeToString(), "cpu")
    names = [i.name for i in session.get_inputs()]
    given = {name: getattr(inputs, name) for name in names}
    run = session.run(None, {name: x.numpy() for name, x in given.items()})[0]
    bound = BoundSession(session, names)
    bound({name: torch.zeros_like(x) for name, x in given.items()}, inputs.candidate.shape[0])
    return run, bound(given, inputs.candidate.shape[0])


@given(
    seed=st.integers(0, 1000),
    rows=st.integers(1, 50),
    contexts=st.sampled_from([None, 1, 3]),
    strided=st.booleans(),
    precision=st.sampled_from(["fp32", "int8"]),
)
def test_memory_that_is_bound_gives_the_answers_of_run(
    seed: int, rows: int, contexts: int | None, strided: bool, precision: DensePrecision
) -> None:
    g = torch.Generator().manual_seed(seed)
    every = rows if contexts is None else contexts
    candidate = torch.randn(rows, SLOTS.candidate, WIDTH, generator=g)
    if strided:
        candidate = candidate.transpose(1, 2).contiguous().transpose(1, 2)
    inputs = Inputs(
        torch.randn(every, DENSE.context, generator=g),
        torch.randn(rows, DENSE.candidate, generator=g),
        torch.randn(every, SLOTS.context, WIDTH, generator=g),
        candidate,
        None if contexts is None else torch.randint(contexts, (rows,), generator=g),
    )
    run, bound = both(inputs, precision)
    np.testing.assert_allclose(bound, run, rtol=0, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cuda:0", "tensorrt:0"])
def test_a_gpu_session_reads_the_stages_vectors_in_place(bundle: Bundle, device: str) -> None:
    try:
        there = open_runtime("onnx", bundle, device)
    except RuntimeUnavailable as e:
        pytest.skip(f"this onnxruntime has no {device}: {e}")
    here = open_runtime("onnx", bundle)
    random = np.random.default_rng(0)
    table_rows = {t: v.rows for t, v in bundle.encoder.vocabularies.items()}
    for contexts in (None, 1, 3):
        for rows in (1, 7, 300):
            batch = random_batch(random, bundle.manifest.schema_, table_rows, rows, contexts)
            assert there.embed(batch).candidate.is_cuda
            np.testing.assert_allclose(there.predict(batch), here.predict(batch), atol=1e-3)
