"""Builds DHE's decoders as an ONNX graph: one MLP per table, each with its own input.

The inputs are `codes0` [rows of table 0, k], `codes1` and so on; the output is `vectors` [all rows, width],
table by table. Tables need no padding to a common length, and their codes are views of one matrix.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from torch import Tensor

from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.embeddings.decoder import Activation, Decoders, DecodersByRows
from polyrec.models.runtimes.graph_writer import GraphWriter
from polyrec.models.schema.batch import F32, I64


def decoder_graph(
    decoders: Decoders | DecodersByRows, precision: DensePrecision = "fp32", bounded: bool = False
) -> onnx.ModelProto:
    """Builds the graph of folded decoders (without batch norms).

    precision: fp32, or int8 for large products.
    bounded: whether codes are within [-1, 1] (those of the uniform transform), so that one constant step
    quantizes them.
    """
    g = GraphWriter(precision)
    mlps = [decoders.layers(table) for table in range(len(decoders.flops))]
    parts = [g.input(f"codes{t}", f"rows{t}", layers[0][0].shape[0]) for t, layers in enumerate(mlps)]
    largest = 1.0 if bounded else None
    vectors = [_mlp(g, x, mlp, decoders.activation, largest) for x, mlp in zip(parts, mlps, strict=True)]
    g.node("Concat", *vectors, output="vectors", axis=0)
    return g.model("vectors", "rows", decoders.width)


def _mlp(
    g: GraphWriter,
    x: str,
    layers: Sequence[tuple[Tensor, Tensor]],
    activation: Activation,
    largest: float | None,
) -> str:
    """Adds one decoder. largest: largest absolute code, None if unknown."""
    for layer, (weight, bias) in enumerate(layers):
        if layer:
            x = _activation(g, x, activation)
        x = g.product(x, weight.t(), bias, largest=None if layer else largest)
    return x


def _activation(g: GraphWriter, x: str, kind: Activation) -> str:
    if kind == "mish":
        return g.node("Mul", x, g.node("Tanh", g.node("Softplus", x)))
    x = g.node("Relu", x)
    g.rectified.add(x)
    return x


def decoder_inputs(codes: F32, counts: I64) -> dict[str, F32]:
    """Splits codes [rows, k], grouped by table, into the graph's inputs, as views. counts: rows of each
    table.
    """
    ends = np.cumsum(counts).tolist()
    starts = [0, *ends[:-1]]
    return {f"codes{t}": codes[a:b] for t, (a, b) in enumerate(zip(starts, ends, strict=True))}
