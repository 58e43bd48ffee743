"""Pads the vectors of a foreign model to equal width.

Polyrec stores all tables in one weight, so narrower vectors are padded with zeros. If vectors are
concatenated (`cat` and the cross net), the layers that read them get zero weights at the same positions, so
the model computes the same result; a cross layer keeps these positions at zero, because it multiplies by its
input. The dot interaction multiplies vectors, which therefore must have equal widths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polyrec.models.importers.checkpoint import CheckpointWeights, LinearLayer
from polyrec.models.importers.foreign_model import Crossing
from polyrec.models.importers.table_rows import TableRows, padded


@dataclass(frozen=True, slots=True)
class EqualWidths:
    """Parts of a model whose vectors have the same width. first: first layer of the top MLP."""

    tables: Mapping[str, TableRows]
    bottom: tuple[LinearLayer, ...]
    first: LinearLayer
    crossings: tuple[Crossing, ...] = ()


def check_equal_widths(
    weights: CheckpointWeights, tables: Mapping[str, TableRows], bottom: Sequence[LinearLayer]
) -> int:
    """Returns the common width of all tables and of the bottom MLP's output.

    Raises CheckpointError if they differ, which the dot interaction does not allow.
    """
    (first, table), *others = tables.items()
    width = table.width
    for name, other in others:
        if other.width != width:
            raise weights.error(
                f"table {name} has vectors of {other.width} numbers, {first} of {width}; "
                "the dot interaction needs vectors of one width"
            )
    last = bottom[-1]
    if last.weight.shape[0] != width:
        raise weights.error(
            f"{last.name} gives {last.weight.shape[0]} numbers a row, the tables have vectors of {width}"
        )
    return width


def joined_width(
    tables: Mapping[str, TableRows], features: Sequence[str], bottom: Sequence[LinearLayer]
) -> int:
    """Returns the width of all vectors of a row, concatenated."""
    return sum(_widths(tables, features, bottom))


def with_equal_widths(
    tables: Mapping[str, TableRows],
    features: Sequence[str],
    bottom: tuple[LinearLayer, ...],
    first: LinearLayer,
    crossings: tuple[Crossing, ...] = (),
) -> EqualWidths:
    """Pads the vectors of a model that concatenates them to the widest vector's width.

    features: the table of each feature. `first` reads the concatenated vectors; `crossings` read and yield
    them.
    """
    widths = _widths(tables, features, bottom)
    width = max(widths)
    if min(widths) == width:
        return EqualWidths(tables, bottom, first, crossings)
    columns = torch.cat([place * width + torch.arange(w) for place, w in enumerate(widths)])
    joined = len(widths) * width
    last = bottom[-1]
    own = torch.arange(last.weight.shape[0])
    return EqualWidths(
        {name: padded(table, width) for name, table in tables.items()},
        (
            *bottom[:-1],
            replace(last, weight=_spread(last.weight, 0, own, width), bias=_spread(last.bias, 0, own, width)),
        ),
        replace(first, weight=_spread(first.weight, 1, columns, joined)),
        tuple(
            Crossing(
                _spread(c.down, 1, columns, joined),
                replace(
                    c.up,
                    weight=_spread(c.up.weight, 0, columns, joined),
                    bias=_spread(c.up.bias, 0, columns, joined),
                ),
            )
            for c in crossings
        ),
    )


def _widths(
    tables: Mapping[str, TableRows], features: Sequence[str], bottom: Sequence[LinearLayer]
) -> list[int]:
    return [int(bottom[-1].weight.shape[0]), *(tables[f].width for f in features)]


def _spread(tensor: Tensor, dim: int, places: Tensor, size: int) -> Tensor:
    """Places the slices of a dimension at `places` of a longer one of `size`; zero elsewhere."""
    shape = list(tensor.shape)
    shape[dim] = size
    return tensor.new_zeros(shape).index_copy(dim, places, tensor)
