from __future__ import annotations

import pytest

from polyrec.models.errors import RuntimeUnavailable
from polyrec.models.runtimes.graph_writer import GraphWriter
from polyrec.models.runtimes.kinds.onnx import open_session


def test_a_device_that_cannot_be_used_is_named() -> None:
    graph = GraphWriter("fp32")
    same = graph.node("Identity", graph.input("x", "rows", 1), output="y")
    with pytest.raises(RuntimeUnavailable, match="device 'cuda:99'"):
        open_session(graph.model(same, "rows", 1).SerializeToString(), "cuda:99")
