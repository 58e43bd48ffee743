"""Reorders a bundle's rows by popularity; the prediction for every id stays the same.

Ids and values stay; ranks, counts and stored rows move together. Stored rows are treated as bytes, so every
precision is permuted without loss. A partly computed table stores its hottest rows, so its new prefix is
filled from the model: rows that enter it are computed, and rows that leave it must equal what the decoder
computes for them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.dlrm.dlrm import DLRM
from polyrec.models.dlrm.representation import stage_from_tensors
from polyrec.models.embeddings.computed import ComputedStage, HybridStage
from polyrec.models.embeddings.table import TableStage
from polyrec.models.errors import BundleError
from polyrec.models.schema.batch import I64
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.vocabulary import Vocabulary

ROWS_AT_ONCE = 4096
TOLERANCE = 1e-5
"""Largest difference between a stored vector and its decoder's, relative to the table's largest number."""


def reordered(bundle: Bundle, accesses: Mapping[str, I64]) -> tuple[DLRM, Encoder]:
    """Returns the model with its rows in descending order of accesses, and its encoder.

    accesses: table -> int64 [rows], in the order of stable ids; they become the counts. Ties keep their
    order.
    Raises BundleError if a table is partly computed and its rows cannot be moved.
    """
    vocabularies: dict[str, Vocabulary] = {}
    source: dict[str, I64] = {}
    for table, vocabulary in bundle.encoder.vocabularies.items():
        counts = accesses[table]
        ids = np.lexsort((vocabulary.rank_of_id, -counts))
        rank_of_id = np.empty_like(ids)
        rank_of_id[ids] = np.arange(ids.size)
        vocabularies[table] = vocabulary.reordered(rank_of_id, counts[ids])
        source[table] = vocabulary.rank_of_id[ids]
    schema, representation = bundle.manifest.schema_, bundle.manifest.representation
    old = bundle.stage()
    tensors = dict(old.state_dict())
    for name, part in _parts(old).items():
        weight = f"{name}store.weight"
        if isinstance(part, ComputedStage):
            tensors[weight] = _computed_rows(bundle, part, tensors[weight], source)
        else:
            fused = [part.rows.base[t] + source[t] for t in part.rows.tables]
            tensors[weight] = tensors[weight].index_select(0, torch.from_numpy(np.concatenate(fused)))
    stage = stage_from_tensors(representation, schema, vocabularies, tensors)
    for before, after in zip(_parts(old).values(), _parts(stage).values(), strict=True):
        if isinstance(before, ComputedStage) and isinstance(after, ComputedStage):
            _check_left(bundle, before, after, source)
    return DLRM(stage, bundle.model().net).eval(), Encoder(schema, vocabularies, bundle.encoder.standards)


def _parts(stage: object) -> dict[str, TableStage | ComputedStage]:
    """Returns the stages that store rows, by the prefix of their tensors' names."""
    if isinstance(stage, HybridStage):
        return {"table.": stage.table, "computed.": stage.computed}
    assert isinstance(stage, TableStage | ComputedStage)
    return {"": stage}


def _cuts(stage: ComputedStage) -> dict[str, tuple[int, int]]:
    """Returns, per table, the number of stored rows and the number of rows."""
    sizes = zip(stage.cuts.tolist(), stage.rows.sizes, strict=True)
    return dict(zip(stage.rows.tables, sizes, strict=True))


def _computed_rows(bundle: Bundle, stage: ComputedStage, stored: Tensor, source: Mapping[str, I64]) -> Tensor:
    """Returns the rows that a computed stage stores in the new order, table by table."""
    parts: list[Tensor] = []
    at = 0
    for table, (cut, size) in _cuts(stage).items():
        if cut in (0, size):
            parts.append(stored[at : at + cut].index_select(0, torch.from_numpy(source[table][:cut])))
        elif bundle.manifest.representation.precision != "fp32":
            raise BundleError(
                f"'{bundle.path}' stores the first {cut:,} of {size:,} rows of table '{table}' in "
                f"{bundle.manifest.representation.precision}, and computes the others: their places are "
                "fixed; calibrate the bundle that it was made from"
            )
        else:
            parts.append(_vectors(stage, stage.rows.base[table] + source[table][:cut]))
        at += cut
    return torch.cat(parts)


def _vectors(stage: ComputedStage, rows: I64) -> Tensor:
    """Returns the vectors of rows of the fused order, which may be unsorted, float32 [n, width]."""
    order = np.argsort(rows)
    out = torch.empty((rows.size, stage.width))
    with torch.inference_mode():
        for start in range(0, rows.size, ROWS_AT_ONCE):
            some = order[start : start + ROWS_AT_ONCE]
            out[torch.from_numpy(some)] = stage.vectors(rows[some])
    return out


def _check_left(
    bundle: Bundle, before: ComputedStage, after: ComputedStage, source: Mapping[str, I64]
) -> None:
    """Raises BundleError if a row that is no longer stored has a different vector when computed."""
    for table, (cut, size) in _cuts(before).items():
        if cut in (0, size):
            continue
        base = before.rows.base[table]
        left = cut + np.flatnonzero(source[table][cut:] < cut)
        stored, computed = _vectors(before, base + source[table][left]), _vectors(after, base + left)
        if left.size and float((stored - computed).abs().max()) > TOLERANCE * float(stored.abs().max()):
            raise BundleError(
                f"'{bundle.path}' was trained with the first {cut:,} of {size:,} rows of table '{table}' "
                "stored and the others computed: its rows cannot change places"
            )
