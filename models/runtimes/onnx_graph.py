"""Builds the dense net as ONNX graphs, node by node.

There are three graphs. Their inputs are named as in `models.dlrm.dlrm.Inputs` (those that the model has), and
they have one output, `probability` [rows]:

- In the plain graph, row r has context r.
- In the ranking graph, rows share contexts: `context_row` [rows] is the context of each row, and values that
  depend on the context alone are computed once per context (models/dlrm/context_once.py).
- The ranking graph of a single context has no `context_row` and repeats nothing for its rows.

Building graphs directly instead of tracing takes milliseconds instead of seconds, needs no exporter at run
time, and yields exactly the products that the model needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import onnx
import torch
from torch import nn

from polyrec.models.dlrm.context_once import ContextOnce, first_layer
from polyrec.models.dlrm.dlrm import DenseNet
from polyrec.models.dlrm.interaction import Cross, Dot
from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.runtimes.graph_writer import GraphWriter
from polyrec.models.runtimes.pairs import pair_products, pair_weights

UNKNOWN: Mapping[str, float] = {}


def plain_graph(
    net: DenseNet, precision: DensePrecision = "fp32", largest: Mapping[str, float] = UNKNOWN
) -> onnx.ModelProto:
    """Builds the graph in which row r has context r.

    precision: fp32, or int8 for large products. Smaller products, and the interaction, which multiplies
    vectors with one another, stay in fp32.
    largest: layer name -> largest absolute input (models/dlrm/activations.py), for static scales in int8.
    """
    g = _writer(net, precision, largest)
    dense = _dense_inputs(g, net, "rows")
    parts = _vector_inputs(g, net, "rows")
    bottom = None if net.bottom is None else _bottom(g, net, dense)
    if isinstance(net.interaction, Dot):
        return _finish(g, _dot(g, net, bottom, g.concat(parts)), net)
    if bottom is not None:
        parts.insert(0, _as_vector(g, bottom))
    x, count = g.concat(parts), sum(net.slots) + (bottom is not None)
    joined = g.node("Reshape", x, g.shape(-1, count * net.shape.width))
    if isinstance(net.interaction, Cross):
        joined = _cross(g, net.interaction, joined, g.linear(joined, _linear(net.interaction.down[0])))
    return _finish(g, g.linear(joined, first_layer(net)), net)


def ranking_graph(
    net: DenseNet,
    precision: DensePrecision = "fp32",
    largest: Mapping[str, float] = UNKNOWN,
    one_context: bool = False,
) -> onnx.ModelProto:
    """Builds the graph with shared contexts: polyrec.models.dlrm.context_once.ContextOnce, node by node.

    one_context: all rows share one context, and the graph has no input `context_row`. Not for the cross
    network, whose inputs repeat the context for each row.
    """
    once = ContextOnce(net)
    g = _writer(net, precision, largest)
    row = None if one_context else g.input("context_row", "rows", integers=True)
    dense = _dense_inputs(g, net, "contexts", "rows")
    vectors = _vector_inputs(g, net, "contexts", "rows")
    if net.slots.candidate == 0 or net.slots.context == 0:
        raise ValueError("a ranking graph needs vectors of both roles")
    of_context, of_row = vectors
    context = [_bottom(g, net, dense)] if once.bottom_per_context else []
    candidate = [_bottom_of_rows(g, net, row)] if once.bottom_per_row else []
    # outputs of the bottom MLP are the first vectors
    before_context, before_row = ([_as_vector(g, bottom) for bottom in each] for each in (context, candidate))
    x, y = g.concat((*before_context, of_context)), g.concat((*before_row, of_row))
    # numbers of vectors of a context, and of a row
    shared, own = net.slots.context + len(before_context), net.slots.candidate + len(before_row)
    width, row_weight = net.shape.width, once.get_buffer("row_weight")
    if isinstance(net.interaction, Dot):
        context.append(g.products(x, x, shared * shared))
        if row is None:
            # one product of [rows * own, D] instead of one per row
            turned = g.node("Transpose", g.node("Reshape", x, g.shape(shared, width)), perm=[1, 0])
            candidate.append(g.node("Reshape", g.node("MatMul", y, turned), g.shape(-1, own * shared)))
        else:
            candidate.append(g.products(y, g.node("Gather", x, row, axis=0), own * shared))
        itself = net.shape.itself
        candidate += pair_products(g, y, own, itself, after_first=of_row if before_row else "")
        c, r = g.concat(context), g.concat(candidate)
        inside = row_weight[:, row_weight.shape[1] - own * own :]
        before = row_weight[:, : row_weight.shape[1] - own * own]
        row_weight = torch.cat((before, pair_weights(inside, own, itself)), dim=1)
    else:
        c = g.node("Reshape", x, g.shape(-1, shared * width))
        r = g.node("Reshape", y, g.shape(-1, own * width))
    # parts of one layer's input; products that are not part of it have weight zero and may saturate
    halved = _linear(net.interaction.down[0]) if isinstance(net.interaction, Cross) else first_layer(net)
    largest_input = g.largest.get(halved)
    constant = g.product(c, once.get_buffer("context_weight"), once.get_buffer("bias"), largest=largest_input)
    added = constant if row is None else g.node("Gather", constant, row, axis=0)
    hidden = g.product(r, row_weight, added=added, largest=largest_input)
    if isinstance(net.interaction, Cross):
        assert row is not None
        vectors_of_rows = g.concat((*before_row, g.node("Gather", x, row, axis=0), of_row))
        first = g.node("Reshape", vectors_of_rows, g.shape(-1, (shared + own) * width))
        hidden = g.linear(_cross(g, net.interaction, first, hidden), first_layer(net))
    return _finish(g, hidden, net)


def _bottom_of_rows(g: GraphWriter, net: DenseNet, row: str | None) -> str:
    """Adds the bottom MLP over dense features of rows; the context's share of its first layer is per context.

    row: the context of each row; None if all rows share one.
    """
    assert net.bottom is not None
    first, *others = net.bottom
    layer = _linear(first)
    weight, largest_input = layer.weight, g.largest.get(layer)
    if net.dense.context:
        added = g.product("dense_context", weight[:, : net.dense.context], layer.bias, largest=largest_input)
        added = added if row is None else g.node("Gather", added, row, axis=0)
        own = weight[:, net.dense.context :]
        sums = g.product("dense_candidate", own, added=added, largest=largest_input)
    else:
        sums = g.product("dense_candidate", weight, layer.bias, largest=largest_input)
    return g.mlp(sums, nn.Sequential(*others))


def _dense_inputs(g: GraphWriter, net: DenseNet, contexts: str, rows: str = "rows") -> list[str]:
    given = (("dense_context", contexts, net.dense.context), ("dense_candidate", rows, net.dense.candidate))
    return [g.input(name, count, size) for name, count, size in given if size]


def _vector_inputs(g: GraphWriter, net: DenseNet, contexts: str, rows: str = "rows") -> list[str]:
    given = (("context", contexts, net.slots.context), ("candidate", rows, net.slots.candidate))
    return [g.input(name, count, size, net.shape.width) for name, count, size in given if size]


def _bottom(g: GraphWriter, net: DenseNet, dense: list[str]) -> str:
    assert net.bottom is not None
    return g.mlp(g.concat(dense), net.bottom)


def _as_vector(g: GraphWriter, bottom: str) -> str:
    """Adds the output of the bottom MLP [rows, D] as one vector of each row [rows, 1, D]."""
    return g.node("Unsqueeze", bottom, g.shape(1))


def _cross(g: GraphWriter, cross: Cross, first: str, low: str) -> str:
    x = first
    for i, up in enumerate(cross.up):
        if i:
            low = g.linear(x, _linear(cross.down[i]))
        x = g.node("Add", g.node("Mul", first, g.linear(low, _linear(up))), x)
    return x


def _writer(net: DenseNet, precision: DensePrecision, largest: Mapping[str, float]) -> GraphWriter:
    """Creates a writer that knows the largest inputs of the net's layers."""
    layers = {name: layer for name, layer in net.named_modules() if isinstance(layer, nn.Linear)}
    return GraphWriter(precision, {layer: largest[name] for name, layer in layers.items() if name in largest})


def _linear(module: nn.Module) -> nn.Linear:
    assert isinstance(module, nn.Linear)
    return module


def _dot(g: GraphWriter, net: DenseNet, bottom: str | None, vectors: str) -> str:
    """Adds the dot interaction and the layer that reads it; returns that layer's sums.

    bottom: output of the bottom MLP [rows, D], if there is one. vectors: [rows, F, D], the embedding vectors.
    """
    first, itself = first_layer(net), net.shape.itself
    weight = first.weight.detach()
    if bottom is None:
        count, ahead = sum(net.slots), 0
        parts = pair_products(g, vectors, count, itself)
    else:
        count, ahead = sum(net.slots) + 1, net.shape.width
        x = g.concat((_as_vector(g, bottom), vectors))
        parts = [bottom, *pair_products(g, x, count, itself, vectors)]
    square = weight.new_zeros((weight.shape[0], count * count))
    square[:, net.interaction.get_buffer("pairs")] = weight[:, ahead:]
    weight = torch.cat((weight[:, :ahead], pair_weights(square, count, itself)), dim=1)
    return g.product(g.concat(parts), weight, first.bias, largest=g.largest.get(first))


def _finish(g: GraphWriter, hidden: str, net: DenseNet) -> onnx.ModelProto:
    """Adds everything after the sums of the first layer that follows the interaction."""
    logit = hidden
    if len(net.top):
        logit = g.linear(g.mlp(hidden, nn.Sequential(*list(net.top)[1:])), net.output)
    g.node("Reshape", g.node("Sigmoid", logit), g.shape(-1), output="probability")
    return g.model("probability", "rows")


@cache
def product_graph() -> bytes:
    """Builds a graph of `c` = `a` times `b`, float32 of any size; returns it serialized."""
    g = GraphWriter("fp32")
    g.input("a", "m", "k")
    g.input("b", "k", "n")
    g.node("MatMul", "a", "b", output="c")
    made: bytes = g.model("c", "m", "n").SerializeToString()
    return made
