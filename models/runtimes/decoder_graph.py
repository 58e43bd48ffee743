"""DHE's decoders as an ONNX graph: one MLP per table over consecutive rows of one matrix of codes.

Inputs are `codes` [rows, k], table by table, and `counts` [tables], the rows of each; the output is `vectors`
[rows, width]. Tables need no padding to a common length, since each has products of its own.
"""

from __future__ import annotations

import onnx
from onnx import helper

from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.embeddings.decoder import Decoders
from polyrec.models.runtimes.graph_writer import GraphWriter


def decoder_graph(
    decoders: Decoders, precision: DensePrecision = "fp32", bounded: bool = False
) -> onnx.ModelProto:
    """Builds the graph of folded decoders (without batch norms).

    precision: fp32, or int8 for products with at least QUANTIZED_FROM weights. bounded: whether codes are
    within [-1, 1] (those of the uniform transform), so that they are quantized with one constant step.
    """
    g = GraphWriter(precision)
    tables = decoders.weights[0].shape[0]
    codes = g.input("codes", "rows", decoders.sizes[0])
    counts = g.input("counts", tables, integers=True)
    parts = [f"codes{table}" for table in range(tables)]
    g.nodes.append(helper.make_node("Split", [codes, counts], parts, axis=0))
    if bounded:
        g.bounded.update(parts)
    g.node("Concat", *(_mlp(g, x, decoders, t) for t, x in enumerate(parts)), output="vectors", axis=0)
    return g.model("vectors", "rows", decoders.width)


def _mlp(g: GraphWriter, x: str, decoders: Decoders, table: int) -> str:
    for layer, (weight, bias) in enumerate(zip(decoders.weights, decoders.biases, strict=True)):
        if layer:
            x = _activation(g, x, decoders.activation)
        x = g.product(x, weight[table].t(), g.constant(bias[table, 0]))
    return x


def _activation(g: GraphWriter, x: str, kind: str) -> str:
    if kind == "mish":
        return g.node("Mul", x, g.node("Tanh", g.node("Softplus", x)))
    x = g.node("Relu", x)
    g.rectified.add(x)
    return x
