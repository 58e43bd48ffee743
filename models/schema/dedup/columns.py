"""Splits batches and blocks into columns, one array or jagged array per feature, to compare their rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from polyrec.models.schema.batch import Batch, Block, take_bags
from polyrec.models.schema.dedup.distinct import Column, Jagged
from polyrec.models.schema.schema import ROLES, Schema

Columns = Mapping[str, Column]


def columns_of(batch: Batch, schema: Schema) -> dict[str, Column]:
    """Splits a batch by feature, with contexts repeated: dense float32 [rows], ranks int64 [rows], bags
    jagged.
    """
    plain = batch.exploded()
    columns: dict[str, Column] = {}
    for role in ROLES:
        layout = schema.layout(role)
        block = plain.context if role == "context" else plain.candidate
        columns |= {d.name: block.dense[:, i] for i, d in enumerate(layout.dense)}
        columns |= {f.name: block.ranks[:, i] for i, f in enumerate(layout.singles)}
        for i, f in enumerate(layout.bags):
            which = np.arange(block.rows) * len(layout.bags) + i
            columns[f.name] = Jagged(*take_bags(block.bag_values, block.bag_offsets, which))
    return columns


def block_columns(block: Block) -> list[Column]:
    """Returns columns that differ between two rows exactly where the block's rows differ."""
    columns: list[Column] = [block.dense, block.ranks]
    if block.bags:
        lengths = np.diff(block.bag_offsets).reshape(block.rows, block.bags)
        columns += [lengths, Jagged(block.bag_values, block.bag_offsets[:: block.bags])]
    return columns
