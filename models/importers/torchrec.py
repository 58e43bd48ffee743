"""Reads a state dict of TorchRec's DLRM or DLRM_DCN (MLPerf's DLRM-DCNv2).

    sparse_arch.embedding_bag_collection.embedding_bags.TABLE.weight   a table, of floats or quantized
    dense_arch.model._mlp.N._linear                                    bottom MLP, each followed by ReLU
    inter_arch.crossnet.{V_kernels,W_kernels,bias}.N                   cross layers (DLRM_DCN only)
    over_arch.model.0._mlp.N._linear, over_arch.model.1                top MLP; the last layer yields a logit

TorchRec's dot interaction lists the pairs of vectors by the upper triangle, row by row. Polyrec and
facebookresearch/dlrm use the lower triangle, so the columns of the first top layer are reordered.

Source: torchrec/models/dlrm.py (InteractionArch, InteractionDCNArch), torchrec/modules/crossnet.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from polyrec.models.importers.checkpoint import CheckpointWeights, LinearLayer, read_weights
from polyrec.models.importers.foreign_model import Crossing, ForeignModel, check_logit
from polyrec.models.importers.table_rows import TableRows, float_rows, quantized_rows
from polyrec.models.importers.widths import check_equal_widths, joined_width, with_equal_widths

MAX_FEATURES = 10_000

_TABLE = "sparse_arch.embedding_bag_collection.embedding_bags."
_CROSS = "inter_arch.crossnet."
_OVER = "over_arch.model."


def read_torchrec(path: str | Path, tables: Sequence[str] = (), quantized: str | None = None) -> ForeignModel:
    """Reads a state dict of TorchRec's DLRM or DLRM_DCN.

    tables: the table of each feature, in the order of the model's EmbeddingBagConfigs; a shared table is
    listed once per feature. Default: every table once, in file order.
    quantized: `int8` or `int4`, the type of byte tables whose size fits both. Raises CheckpointError with one
    line.
    """
    weights = read_weights(path, "torchrec")
    _check_supported(weights)
    names = weights.names(re.escape(_TABLE) + r"(.+)\.weight")
    if not names:
        raise weights.error(f"{_TABLE}TABLE.weight is missing: there is no table")
    bottom = weights.mlp("dense_arch.model._mlp.", "._linear")
    width = bottom[-1].weight.shape[0]
    grouped = not tables and any(weights.dtype(f"{_TABLE}{name}.weight") is torch.uint8 for name in names)
    found = {name: _table(weights, name, width, quantized) for name in names}
    features = _features(weights, names, tables)
    hidden, output = weights.mlp(f"{_OVER}0._mlp.", "._linear"), weights.layer(f"{_OVER}1")
    weights.check_reads(output, hidden[-1].weight.shape[0], hidden[-1].name)
    check_logit(weights, output)
    first = hidden[0]
    kernels = len(weights.names(re.escape(_CROSS) + r"(V_kernels\.\d+)"))
    crossings = tuple(_crossing(weights, n) for n in range(kernels))
    weights.finish("TorchRec's DLRM or DLRM_DCN")
    if crossings:
        joined = joined_width(found, features, bottom)
        name, reads = f"{_CROSS}V_kernels.0", crossings[0].down.shape[1]
        equal = joined == (len(features) + 1) * width
        _check_features(weights, name, reads, len(features), lambda n: (n + 1) * width if equal else joined)
        _check_crossings(weights, crossings, joined)
        weights.check_reads(first, joined, "the cross net")
        parts = with_equal_widths(found, features, bottom, first, tuple(_within_width(c) for c in crossings))
        found, bottom, first, crossings = dict(parts.tables), parts.bottom, parts.first, parts.crossings
    else:
        check_equal_widths(weights, found, bottom)
        _check_features(
            weights, first.name, first.weight.shape[1], len(features), lambda n: width + n * (n + 1) // 2
        )
        first = replace(first, weight=_lower_triangle(first.weight, len(features) + 1, width))
    return ForeignModel(
        "torchrec",
        weights,
        found,
        features,
        bottom,
        (first, *hidden[1:], output),
        "cross" if crossings else "dot",
        crossings=crossings,
        grouped=grouped,
    )


def _check_supported(weights: CheckpointWeights) -> None:
    """Raises CheckpointError for parts of TorchRec's models that cannot be imported."""
    for name in weights.names(r"(sparse_arch\..*feature_processor.*)"):
        raise weights.error(f"{name}: weights by position in a list (feature processors) cannot be imported")
    for name in weights.names(r"(inter_arch\.interaction_branch\d\..*)"):
        raise weights.error(f"{name}: a DLRM_Projection cannot be imported; DLRM and DLRM_DCN can")


def _check_crossings(weights: CheckpointWeights, crossings: Sequence[Crossing], joined: int) -> None:
    """Raises CheckpointError unless all cross layers have one rank and read `joined` numbers."""
    rank = crossings[0].down.shape[0]
    for crossing in crossings:
        shapes = [list(t.shape) for t in (crossing.down, crossing.up.weight)]
        if shapes != [[rank, joined], [joined, rank]]:
            raise weights.error(
                f"{crossing.up.name} and its V kernel have shapes {shapes[1]} and {shapes[0]}; "
                f"expected {[joined, rank]} and {[rank, joined]}"
            )


def _table(weights: CheckpointWeights, name: str, width: int, quantized: str | None) -> TableRows:
    """Takes a table of floats, or a quantized one of that width. Raises CheckpointError."""
    if weights.dtype(f"{_TABLE}{name}.weight") is torch.uint8:
        return quantized_rows(weights, f"{_TABLE}{name}", width, quantized)
    return float_rows(weights.take(f"{_TABLE}{name}.weight", 2, check_finite=False))


def _features(weights: CheckpointWeights, names: Sequence[str], tables: Sequence[str]) -> tuple[str, ...]:
    """Returns the table of each feature. Raises CheckpointError if the order is ambiguous."""
    if tables:
        for name in (*tables, *names):
            if name not in names:
                raise weights.error(f"--tables: there is no table {name}; the tables are {','.join(names)}")
            if name not in tables:
                raise weights.error(f"--tables leaves out table {name}")
        return tuple(tables)
    numbered = [re.fullmatch(r"(.*?)([0-9]+)", name) for name in names]
    matches = [match for match in numbered if match]
    if len(matches) == len(names) and len({match[1] for match in matches}) == 1:
        numbers = [int(match[2]) for match in matches]
        if numbers != sorted(numbers):
            raise weights.error(
                f"the tables stand in the order {','.join(names)}, which is not that of their numbers; "
                "say the model's order with --tables"
            )
    return tuple(names)


def _crossing(weights: CheckpointWeights, n: int) -> Crossing:
    down, up = weights.take(f"{_CROSS}V_kernels.{n}", 2), weights.take(f"{_CROSS}W_kernels.{n}", 2)
    bias = weights.take(f"{_CROSS}bias.{n}", 1)
    if bias.shape[0] != up.shape[0]:
        raise weights.error(
            f"{_CROSS}bias.{n} has {bias.shape[0]} numbers, {_CROSS}W_kernels.{n} {up.shape[0]} rows"
        )
    return Crossing(down, LinearLayer(f"{_CROSS}W_kernels.{n}", up, bias))


def _within_width(crossing: Crossing) -> Crossing:
    """Reduces a rank above the joined width, which has no effect, to the joined width."""
    rank, joined = crossing.down.shape
    if rank <= joined:
        return crossing
    product = crossing.up.weight.double() @ crossing.down.double()
    return Crossing(torch.eye(joined), replace(crossing.up, weight=product))


def _check_features(
    weights: CheckpointWeights, name: str, reads: int, features: int, gives: Callable[[int], int]
) -> None:
    """Raises CheckpointError unless the interaction of this many features yields what `name` reads."""
    if gives(features) == reads:
        return
    fit = next((n for n in range(1, MAX_FEATURES) if gives(n) == reads), None)
    raise weights.error(
        f"{name} reads {reads} numbers a row, the interaction of {features} features gives {gives(features)}"
        + (f"; it fits {fit} features: name the table of each with --tables" if fit else "")
    )


def _lower_triangle(weight: Tensor, vectors: int, width: int) -> Tensor:
    """Reorders columns of the first top layer from TorchRec's order of pairs; the first `width` stay."""
    i, j = torch.triu_indices(vectors, vectors, 1)
    position = torch.zeros(vectors, vectors, dtype=torch.long)
    position[j, i] = torch.arange(i.numel())
    low_i, low_j = torch.tril_indices(vectors, vectors, -1)
    pairs = weight[:, width:].index_select(1, position[low_i, low_j])
    return torch.cat((weight[:, :width], pairs), dim=1)
