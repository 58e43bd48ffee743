from __future__ import annotations

import numpy as np
import pytest

from polyrec.models.runtimes.graph_writer import GraphWriter
from polyrec.models.runtimes.kinds.onnx import open_session
from polyrec.models.runtimes.pairs import column_pairs, pair_products


@pytest.mark.parametrize("given_others", [False, True])
@pytest.mark.parametrize("itself", [False, True])
@pytest.mark.parametrize("vectors", [1, 2, 3, 4, 5, 6, 7, 8, 13, 27, 28, 64])
def test_every_pair_is_multiplied_once(vectors: int, itself: bool, given_others: bool) -> None:
    pairs = column_pairs(vectors, itself)
    i, j = np.tril_indices(vectors, 0 if itself else -1)
    assert sorted(pairs[pairs >= 0].tolist()) == sorted((i * vectors + j).tolist())
    assert pairs.size <= i.size + (vectors % 2 == 0) * vectors / 2

    g = GraphWriter("fp32")
    x = g.input("x", "rows", vectors, 4)
    others = g.input("others", "rows", vectors - 1, 4) if given_others and vectors > 1 else ""
    parts = pair_products(g, x, vectors, itself, others)
    if not pairs.size:
        assert not parts
        return
    g.node("Identity", g.concat(parts), output="columns")
    session = open_session(g.model("columns", "rows", pairs.size).SerializeToString(), "cpu")
    given = np.random.default_rng(vectors).random((3, vectors, 4), np.float32)
    got = session.run(None, {"x": given} | ({"others": given[:, 1:]} if others else {}))[0]
    products = (given @ given.transpose(0, 2, 1)).reshape(3, -1)
    np.testing.assert_allclose(got[:, pairs >= 0], products[:, pairs[pairs >= 0]], rtol=1e-6)
