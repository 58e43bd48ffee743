"""The dense net as ONNX graphs, written node by node.

Two graphs, with the names of `models.dlrm.dlrm.Inputs` (those that the model has) and one output,
`probability` [rows]. In the plain graph row r has context r; in the ranking graph rows share contexts,
`context_row` [rows] is the context of each row, and values of the context alone are computed once per context
(models/dlrm/context_once.py). Graphs are built directly rather than traced: this takes milliseconds instead
of seconds, needs no exporter at run time, and contains exactly the products that the model needs.

No operation mixes rows, so a row's probability does not depend on the rows that it is batched with
(docs/representations.md, "Isolation").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from polyrec.models.dlrm.context_once import ContextOnce, first_layer
from polyrec.models.dlrm.dlrm import DenseNet
from polyrec.models.dlrm.interaction import Cross, Dot
from polyrec.models.dlrm.precision import DensePrecision

OPSET = 17
MICROSOFT = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""
QUANTIZED_FROM = 2**15
"""Minimum weights of a product executed in int8; on smaller ones quantizing a row and scaling its sums take
longer than int8 saves (docs/representations.md)."""


class _Writer:
    """Collects nodes and initializers; each call returns the name of its output."""

    def __init__(self, precision: DensePrecision) -> None:
        self.precision = precision
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.rectified: set[str] = set()

    def input(self, name: str, rows: str, *sizes: int) -> str:
        kind = TensorProto.INT64 if name == "context_row" else TensorProto.FLOAT
        self.inputs.append(helper.make_tensor_value_info(name, kind, [rows, *sizes]))
        return name

    def constant(self, array: NDArray[np.generic] | Tensor) -> str:
        name = f"c{len(self.constants)}"
        if isinstance(array, Tensor):
            array = array.detach().float().cpu().numpy()
        self.constants.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def concat(self, parts: Sequence[str], axis: int = 1) -> str:
        return self.node("Concat", *parts, axis=axis) if len(parts) > 1 else parts[0]

    def products(self, left: str, right: str, count: int) -> str:
        """Adds dot products of all vectors of `left` with all of `right`, flat: [rows, count]."""
        turned = self.node("Transpose", right, perm=[0, 2, 1])
        return self.node("Reshape", self.node("MatMul", left, turned), self.shape(-1, count))

    def shape(self, *sizes: int) -> str:
        """Adds a target shape for Reshape; only the rows are -1, so that zero rows work."""
        return self.constant(np.array(sizes, np.int64))

    def node(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        out = output or f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], **attributes))
        return out

    def linear(self, x: str, layer: nn.Linear) -> str:
        return self.product(x, layer.weight, None if layer.bias is None else self.constant(layer.bias))

    def product(self, x: str, weight: Tensor, added: str | None = None) -> str:
        """Adds x [rows, in] times weight [out, in] transposed, plus `added` (a bias, or rows)."""
        if self.precision == "int8" and weight.numel() >= QUANTIZED_FROM:
            return self._product_int8(x, weight, added)
        return self.node("Gemm", *([x, self.constant(weight)] + ([added] if added else [])), transB=1)

    def _product_int8(self, x: str, layer: Tensor, added: str | None) -> str:
        """Adds the product in int8: weights with one scale per column, x with one scale per row.

        A scale per batch would make every row's result depend on the largest value in the batch. Integer sums
        are exact, so a row's result is bit-identical for any number of rows.
        """
        weight = layer.detach().float().cpu().numpy().T
        scale = np.maximum(np.abs(weight).max(axis=0), np.finfo(np.float32).tiny) / 127.0
        q = np.clip(np.rint(weight / scale), -127, 127).astype(np.int8)
        numbers, step, zero = self._quantized(x)
        # the operator takes one scale for all of x: 1 here; rows are scaled afterwards
        unit = self.constant(np.array(1.0, np.float32))
        given = [numbers, self.constant(q), unit, self.constant(scale.astype(np.float32)), zero]
        out = self.node("Mul", self.node("MatMulIntegerToFloat", *given, domain=MICROSOFT), step)
        return out if added is None else self.node("Add", out, added)

    def _quantized(self, x: str) -> tuple[str, str, str]:
        """Quantizes x float32 [rows, n] to (uint8 [rows, n], float32 [rows, 1], uint8 scalar).

        x = step * (q - zero). zero is 0 after a ReLU, so that all 255 levels are positive, else 128.
        """
        positive = x in self.rectified
        largest = self.node("ReduceMax", x if positive else self.node("Abs", x), axes=[1], keepdims=0)
        levels = self.constant(np.array(1.0 / (255.0 if positive else 127.0), np.float32))
        # at least the smallest normal number: a row may be all zeros
        tiny = self.constant(np.array(np.finfo(np.float32).tiny))
        step = self.node("Max", self.node("Mul", largest, levels), tiny)
        zero = 0 if positive else 128
        zeros = self.node(
            "ConstantOfShape",
            self.node("Shape", step),
            value=helper.make_tensor("zero", TensorProto.UINT8, [1], [zero]),
        )
        numbers = self.node("QuantizeLinear", x, step, zeros, axis=0)
        return numbers, self.node("Unsqueeze", step, self.shape(1)), self.constant(np.array(zero, np.uint8))

    def mlp(self, x: str, layers: nn.Sequential) -> str:
        for layer in layers:
            if isinstance(layer, nn.Linear):
                x = self.linear(x, layer)
            elif isinstance(layer, nn.ReLU):
                x = self.node("Relu", x)
                self.rectified.add(x)
        return x


def plain_graph(net: DenseNet, precision: DensePrecision = "fp32") -> onnx.ModelProto:
    """Builds the graph in which row r has context r.

    precision: fp32, or int8 for the products with at least QUANTIZED_FROM weights; smaller ones, and the
    interaction, which multiplies vectors with one another, stay in fp32.
    """
    g = _Writer(precision)
    dense = _dense_inputs(g, net, "rows")
    parts = _vector_inputs(g, net, "rows")
    if net.bottom is not None:
        parts.insert(0, g.node("Unsqueeze", g.mlp(g.concat(dense), net.bottom), g.shape(1)))
    x, count = g.concat(parts), sum(net.slots) + (net.bottom is not None)
    if isinstance(net.interaction, Dot):
        chosen = net.interaction.get_buffer("pairs").cpu().numpy().astype(np.int64)
        joined = g.node("Gather", g.products(x, x, count * count), g.constant(chosen), axis=1)
        if net.bottom is not None:
            joined = g.concat((_first_vector(g, x), joined))
    else:
        joined = g.node("Reshape", x, g.shape(-1, count * net.shape.width))
        if isinstance(net.interaction, Cross):
            joined = _cross(g, net.interaction, joined, g.linear(joined, _linear(net.interaction.down[0])))
    return _finish(g, g.mlp(joined, net.top) if len(net.top) else g.linear(joined, net.output), net)


def ranking_graph(net: DenseNet, precision: DensePrecision = "fp32") -> onnx.ModelProto:
    """Builds the graph with shared contexts: polyrec.models.dlrm.context_once.ContextOnce, node by node."""
    once = ContextOnce(net)
    g = _Writer(precision)
    row = g.input("context_row", "rows")
    dense = _dense_inputs(g, net, "contexts", "rows")
    vectors = _vector_inputs(g, net, "contexts", "rows")
    if net.slots.candidate == 0 or net.slots.context == 0:
        raise ValueError("a ranking graph needs vectors of both roles")
    x, y = vectors
    shared, own = net.slots
    if once.bottom_per_context:
        x = g.concat((g.node("Unsqueeze", _bottom(g, net, dense), g.shape(1)), x))
        shared += 1
    if once.bottom_per_row:
        rows = [g.node("Gather", d, row, axis=0) if d == "dense_context" else d for d in dense]
        y = g.concat((g.node("Unsqueeze", _bottom(g, net, rows), g.shape(1)), y))
        own += 1
    width = net.shape.width
    if isinstance(net.interaction, Dot):
        context = [_first_vector(g, x)] if once.bottom_per_context else []
        context.append(g.products(x, x, shared * shared))
        candidate = [_first_vector(g, y)] if once.bottom_per_row else []
        candidate.append(g.products(y, g.node("Gather", x, row, axis=0), own * shared))
        candidate.append(g.products(y, y, own * own))
        c, r = g.concat(context), g.concat(candidate)
    else:
        c = g.node("Reshape", x, g.shape(-1, shared * width))
        r = g.node("Reshape", y, g.shape(-1, own * width))
    constant = g.product(c, once.get_buffer("shared"), g.constant(once.get_buffer("bias")))
    hidden = g.product(r, once.get_buffer("own"), g.node("Gather", constant, row, axis=0))
    if isinstance(net.interaction, Cross):
        parts = [g.node("Gather", x, row, axis=0), y]
        if once.bottom_per_row:
            split = f"{y}_bottom", f"{y}_rest"
            sizes = g.constant(np.array([1, own - 1], np.int64))
            g.nodes.append(helper.make_node("Split", [y, sizes], list(split), axis=1))
            parts = [split[0], parts[0], split[1]]
        first = g.node("Reshape", g.concat(parts), g.shape(-1, (shared + own) * width))
        hidden = g.linear(_cross(g, net.interaction, first, hidden), first_layer(net))
    return _finish(g, g.mlp(hidden, nn.Sequential(*list(net.top)[1:])) if len(net.top) else hidden, net)


def _dense_inputs(g: _Writer, net: DenseNet, contexts: str, rows: str = "rows") -> list[str]:
    given = (("dense_context", contexts, net.dense.context), ("dense_candidate", rows, net.dense.candidate))
    return [g.input(name, count, size) for name, count, size in given if size]


def _vector_inputs(g: _Writer, net: DenseNet, contexts: str, rows: str = "rows") -> list[str]:
    given = (("context", contexts, net.slots.context), ("candidate", rows, net.slots.candidate))
    return [g.input(name, count, size, net.shape.width) for name, count, size in given if size]


def _bottom(g: _Writer, net: DenseNet, dense: list[str]) -> str:
    assert net.bottom is not None
    return g.mlp(g.concat(dense), net.bottom)


def _first_vector(g: _Writer, x: str) -> str:
    """Selects the bottom MLP's output [rows, D] of x [rows, F, D]."""
    return g.node("Gather", x, g.constant(np.array(0, np.int64)), axis=1)


def _cross(g: _Writer, cross: Cross, first: str, low: str) -> str:
    x = first
    for i, up in enumerate(cross.up):
        if i:
            low = g.linear(x, _linear(cross.down[i]))
        x = g.node("Add", g.node("Mul", first, g.linear(low, _linear(up))), x)
    return x


def _linear(module: nn.Module) -> nn.Linear:
    assert isinstance(module, nn.Linear)
    return module


def _finish(g: _Writer, x: str, net: DenseNet) -> onnx.ModelProto:
    """Adds the output layer after the top MLP's `x` (the logit if there is no top MLP)."""
    logit = g.linear(x, net.output) if len(net.top) else x
    g.node("Reshape", g.node("Sigmoid", logit), g.shape(-1), output="probability")
    out = helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["rows"])
    graph = helper.make_graph(g.nodes, "dlrm", g.inputs, [out], g.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.checker.check_model(model)
    return model
