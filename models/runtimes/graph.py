"""The dense net as an ONNX graph, written node by node.

Inputs `dense` [rows, dense features], `singles` [rows, S, D], `bags` [rows, B, D] (each only where
the model has it), output `probability` [rows]. Written by hand rather than traced: it takes
milliseconds instead of seconds, needs no exporter at run time, and the graph holds exactly the
products that the model needs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from models.dlrm import DenseNet
from models.interaction import Cross, Dot
from models.runtimes.runtime import DensePrecision

OPSET = 17


class _Writer:
    """Collects nodes and initialisers; each call returns the name of its output."""

    def __init__(self, precision: DensePrecision) -> None:
        self.precision = precision
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, array: NDArray[np.generic] | Tensor) -> str:
        name = f"c{len(self.constants)}"
        if isinstance(array, Tensor):
            array = array.detach().float().cpu().numpy()
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def shape(self, *sizes: int) -> str:
        """A shape to reshape to; -1 is the rows, all else is given, so that zero rows work too."""
        return self.constant(np.array(sizes, np.int64))

    def node(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        out = output or f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], **attributes))
        return out

    def linear(self, x: str, layer: nn.Linear) -> str:
        if self.precision == "int8":
            return self._linear_int8(x, layer)
        parts = [x, self.constant(layer.weight)]
        if layer.bias is not None:
            parts.append(self.constant(layer.bias))
        return self.node("Gemm", *parts, transB=1)

    def _linear_int8(self, x: str, layer: nn.Linear) -> str:
        """Weights in int8, one scale a column; the input in uint8, one scale a batch.

        The chain is the one that ONNX Runtime fuses into a single product.
        """
        weight = layer.weight.detach().float().cpu().numpy().T
        scale = np.maximum(np.abs(weight).max(axis=0), np.finfo(np.float32).tiny) / 127.0
        q = np.clip(np.rint(weight / scale), -127, 127).astype(np.int8)
        numbers, step, zero = (f"{x}_q", f"{x}_step", f"{x}_zero")
        self.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], [numbers, step, zero]))
        product = self.node("MatMulInteger", numbers, self.constant(q), zero)
        wide = self.node("Cast", product, to=TensorProto.FLOAT)
        steps = self.node("Mul", step, self.constant(scale.astype(np.float32)))
        out = self.node("Mul", wide, steps)
        return out if layer.bias is None else self.node("Add", out, self.constant(layer.bias))

    def mlp(self, x: str, layers: nn.Sequential) -> str:
        for layer in layers:
            if isinstance(layer, nn.Linear):
                x = self.linear(x, layer)
            elif isinstance(layer, nn.ReLU):
                x = self.node("Relu", x)
        return x


def dense_graph(
    net: DenseNet, singles: int, bags: int, precision: DensePrecision = "fp32"
) -> onnx.ModelProto:
    """The graph of `net` for S = `singles` and B = `bags` vectors a row.

    precision: fp32, or int8 for the products with weights; the interaction multiplies vectors and
    stays in fp32.
    """
    width = net.shape.width
    g = _Writer(precision)
    inputs = []
    bottom = None
    vectors = []
    if net.bottom is not None:
        inputs.append(("dense", [net.dense_features]))
        bottom = g.mlp("dense", net.bottom)
    for name, count in (("singles", singles), ("bags", bags)):
        if count:
            inputs.append((name, [count, width]))
            vectors.append(name)
    if isinstance(net.interaction, Dot):
        joined = _dot(g, net.interaction, bottom, vectors, net.slots + (bottom is not None))
    else:
        sizes = {"singles": singles * width, "bags": bags * width}
        parts = [g.node("Reshape", v, g.shape(-1, sizes[v])) for v in vectors]
        if bottom is not None:
            parts.insert(0, bottom)
        joined = g.node("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]
        if isinstance(net.interaction, Cross):
            joined = _cross(g, net.interaction, joined)
    logit = g.linear(g.mlp(joined, net.top), net.output)
    column = g.node("Sigmoid", logit)
    g.node("Reshape", column, g.shape(-1), output="probability")
    graph = helper.make_graph(
        g.nodes,
        "dlrm",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", *shape]) for n, shape in inputs],
        [helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["rows"])],
        g.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def _dot(g: _Writer, dot: Dot, bottom: str | None, vectors: list[str], count: int) -> str:
    parts = list(vectors)
    if bottom is not None:
        parts.insert(0, g.node("Unsqueeze", bottom, g.shape(1)))
    x = g.node("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]
    products = g.node("MatMul", x, g.node("Transpose", x, perm=[0, 2, 1]))
    flat = g.node("Reshape", products, g.shape(-1, count * count))
    chosen = dot.get_buffer("pairs").cpu().numpy().astype(np.int64)
    pairs = g.node("Gather", flat, g.constant(chosen), axis=1)
    return pairs if bottom is None else g.node("Concat", bottom, pairs, axis=1)


def _cross(g: _Writer, cross: Cross, first: str) -> str:
    x = first
    for down, up in zip(cross.down, cross.up, strict=True):
        assert isinstance(down, nn.Linear)
        assert isinstance(up, nn.Linear)
        product = g.node("Mul", first, g.linear(g.linear(x, down), up))
        x = g.node("Add", product, x)
    return x
