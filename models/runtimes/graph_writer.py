"""Writes ONNX graphs node by node: nodes, constants, and matrix products in fp32 or int8.

No operation mixes rows, so a row's result does not depend on its batch (docs/representations.md,
"Isolation").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.runtimes.saturation import saturates

OPSET = 17
IR_VERSION = 9
MICROSOFT = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""
QUANTIZED_FROM = 2**15
"""Minimum weights of a product executed in int8; on smaller ones quantizing a row and scaling its sums take
longer than int8 saves (docs/representations.md)."""
STATIC_FROM = 2**14
"""The same for a product whose input has a scale known beforehand, for which less is computed."""
NO_RANGES: Mapping[nn.Linear, float] = {}


class GraphWriter:
    """Collects nodes and initializers; each call returns the name of its output.

    largest: layer -> absolute input beyond which int8 saturates. Layers left out get a scale per row.
    """

    def __init__(self, precision: DensePrecision, largest: Mapping[nn.Linear, float] = NO_RANGES) -> None:
        self.precision = precision
        self.largest = largest
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.rectified: set[str] = set()

    def input(self, name: str, *sizes: str | int, integers: bool = False) -> str:
        """Adds an input, float32 or int64; sizes given as names may vary between runs."""
        kind = TensorProto.INT64 if integers else TensorProto.FLOAT
        self.inputs.append(helper.make_tensor_value_info(name, kind, sizes))
        return name

    def constant(self, array: NDArray[np.generic] | Tensor) -> str:
        """Adds a constant (floats as float32) and returns its name."""
        name = f"c{len(self.constants)}"
        if isinstance(array, Tensor):
            array = array.detach().float().cpu().numpy()
        self.constants.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def concat(self, parts: Sequence[str]) -> str:
        """Concatenates the columns of tensors."""
        return self.node("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]

    def products(self, left: str, right: str, count: int) -> str:
        """Adds dot products of all vectors of `left` with all of `right`, flattened to [rows, count]."""
        turned = self.node("Transpose", right, perm=[0, 2, 1])
        return self.node("Reshape", self.node("MatMul", left, turned), self.shape(-1, count))

    def shape(self, *sizes: int) -> str:
        """Adds a target shape for Reshape; use -1 only for the rows, so that zero rows work."""
        return self.constant(np.array(sizes, np.int64))

    def node(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        out = output or f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], **attributes))
        return out

    def linear(self, x: str, layer: nn.Linear) -> str:
        return self.product(x, layer.weight, layer.bias, largest=self.largest.get(layer))

    def product(
        self,
        x: str,
        weight: Tensor,
        bias: Tensor | None = None,
        added: str | None = None,
        largest: float | None = None,
    ) -> str:
        """Adds x [rows, in] times the transpose of weight [out, in], plus bias [out] or `added` [rows, out].

        largest: absolute value of x beyond which int8 saturates; None: a scale per row.
        """
        min_values = QUANTIZED_FROM if largest is None else STATIC_FROM
        if self.precision == "int8" and weight.numel() >= min_values:
            return self._product_int8(x, weight, bias, added, largest)
        if bias is not None:
            added = self.constant(bias)
        return self.node("Gemm", *([x, self.constant(weight)] + ([added] if added else [])), transB=1)

    def _product_int8(
        self, x: str, layer: Tensor, bias: Tensor | None, added: str | None, largest: float | None
    ) -> str:
        """Adds the product in int8: one scale per column for weights, one for all rows or per row for x.

        A scale per batch would make every row's result depend on the largest value in the batch. Integer sums
        are exact, so a row's result is bit-identical for any number of rows.
        """
        weight = layer.detach().float().cpu().numpy().T
        scale = np.maximum(np.abs(weight).max(axis=0), np.finfo(np.float32).tiny) / 127.0
        q = np.clip(np.rint(weight / scale), -127, 127)
        # where sums of signed weights saturate, store the same weights as uint8, 128 higher
        moved = saturates()
        weights = (q + 128).astype(np.uint8) if moved else q.astype(np.int8)
        numbers, step, zero = self._quantized(x) if largest is None else self._saturated(x, largest)
        # the operator takes a single scale for x: the static one, or 1 with rows scaled afterwards
        constant = self.constant(np.array(1.0, np.float32)) if largest is None else step
        given = [numbers, self.constant(weights), constant, self.constant(scale.astype(np.float32)), zero]
        given.append(self.constant(np.array(128, np.uint8)) if moved else "")
        if largest is not None and bias is not None:
            return self.node("MatMulIntegerToFloat", *given, self.constant(bias), domain=MICROSOFT)
        out = self.node("MatMulIntegerToFloat", *given, domain=MICROSOFT)
        if largest is None:
            out = self.node("Mul", out, step)
        if bias is not None:
            added = self.constant(bias)
        return out if added is None else self.node("Add", out, added)

    def _saturated(self, x: str, largest: float) -> tuple[str, str, str]:
        """Quantizes x like `_quantized`, but with one step for all rows; numbers beyond `largest`
        saturate.
        """
        positive = x in self.rectified
        step = max(largest / (255 if positive else 127), float(np.finfo(np.float32).tiny))
        fixed = self.constant(np.array(step, np.float32)), self.constant(_zero(positive))
        return self.node("QuantizeLinear", x, *fixed), *fixed

    def _quantized(self, x: str) -> tuple[str, str, str]:
        """Quantizes x float32 [rows, n] to (uint8 [rows, n], float32 [rows, 1], uint8 scalar).

        x = step * (q - zero). After a ReLU, zero is 0, so that all 255 levels are positive; otherwise it is
        128.
        """
        positive = x in self.rectified
        largest = self.node("ReduceMax", x if positive else self.node("Abs", x), axes=[1], keepdims=0)
        levels = self.constant(np.array(1.0 / (255.0 if positive else 127.0), np.float32))
        # at least the smallest normal number, as a row may be all zeros
        tiny = self.constant(np.array(np.finfo(np.float32).tiny))
        step = self.node("Max", self.node("Mul", largest, levels), tiny)
        zero = _zero(positive)
        zeros = self.node(
            "ConstantOfShape",
            self.node("Shape", step),
            value=helper.make_tensor("zero", TensorProto.UINT8, [1], [int(zero)]),
        )
        numbers = self.node("QuantizeLinear", x, step, zeros, axis=0)
        return numbers, self.node("Unsqueeze", step, self.shape(1)), self.constant(zero)

    def mlp(self, x: str, layers: nn.Sequential) -> str:
        """Adds linear layers and ReLUs applied to `x`; returns the name of their output."""
        for layer in layers:
            if isinstance(layer, nn.Linear):
                x = self.linear(x, layer)
            elif isinstance(layer, nn.ReLU):
                x = self.node("Relu", x)
                self.rectified.add(x)
        return x

    def model(self, output: str, *sizes: str | int) -> onnx.ModelProto:
        """Returns the graph as a checked model with one float32 output of these sizes."""
        out = helper.make_tensor_value_info(output, TensorProto.FLOAT, sizes)
        graph = helper.make_graph(self.nodes, "dlrm", self.inputs, [out], self.constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        onnx.checker.check_model(made)
        return made


def _zero(positive: bool) -> NDArray[np.uint8]:
    """Returns the quantized zero of non-negative numbers (0) or of numbers of both signs (128)."""
    return np.array(0 if positive else 128, np.uint8)
