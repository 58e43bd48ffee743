from __future__ import annotations

import numpy as np
import pytest

from polyrec.models.runtimes.graph_writer import GraphWriter
from polyrec.models.runtimes.kinds.onnx import open_session
from polyrec.models.runtimes.pairs import column_pairs, pair_columns


@pytest.mark.parametrize("itself", [False, True])
@pytest.mark.parametrize("vectors", [1, 2, 3, 4, 5, 6, 7, 8, 13, 27, 28, 64])
def test_every_pair_is_selected_once(vectors: int, itself: bool) -> None:
    pairs = column_pairs(vectors, itself)
    i, j = np.tril_indices(vectors, 0 if itself else -1)
    assert sorted(pairs[pairs >= 0].tolist()) == sorted((i * vectors + j).tolist())
    if vectors >= 13:
        assert pairs.size < 1.15 * i.size

    g = GraphWriter("fp32")
    square = g.input("square", "rows", vectors**2)
    g.node("Identity", pair_columns(g, square, vectors, itself), output="columns")
    session = open_session(g.model("columns", "rows", pairs.size).SerializeToString(), "cpu")
    given = np.arange(3 * vectors**2, dtype=np.float32).reshape(3, vectors, vectors)
    symmetric = np.tril(given) + np.tril(given, -1).transpose(0, 2, 1)
    got = session.run(None, {"square": symmetric.reshape(3, -1)})[0]
    np.testing.assert_array_equal(got[:, pairs >= 0], given.reshape(3, -1)[:, pairs[pairs >= 0]])
