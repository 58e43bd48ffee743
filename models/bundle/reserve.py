"""Reserves rows in a bundle, which a server assigns to new values while it serves.

Until then a reserved row has the vector of the out-of-vocabulary row, so that the bundle predicts as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import torch

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.dlrm.dlrm import DLRM
from polyrec.models.dlrm.representation import stage_from_tensors
from polyrec.models.embeddings.table import TableStage
from polyrec.models.errors import BundleError
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.vocabulary import Vocabulary


def reserve(bundle: Bundle, rows: Mapping[str, int]) -> tuple[DLRM, Encoder]:
    """Returns the model with reserved rows after the coldest row of each table, and its encoder.

    rows: table -> number of rows to reserve. Ids of values stay; the ids for missing and unknown values move
    up.
    Raises BundleError if there is no such table, vectors are computed, a table's values are all integers
    below its size, or it refuses unknown values.
    """
    stage = bundle.stage()
    if not isinstance(stage, TableStage):
        raise BundleError(f"'{bundle.path}' computes vectors: rows can be reserved only where all are stored")
    old = bundle.encoder
    for table in rows:
        if table not in old.vocabularies:
            raise BundleError(f"no table '{table}'; there are {', '.join(old.vocabularies)}")
    vocabularies = {t: _with_reserved(v, rows.get(t, 0)) for t, v in old.vocabularies.items()}
    source = [
        np.concatenate((np.arange(v.rows), np.full(rows.get(t, 0), v.oov_rank))) + stage.rows.base[t]
        for t, v in ((t, old.vocabularies[t]) for t in stage.rows.tables)
    ]
    # rows are treated as bytes, whatever their precision
    weight = stage.state_dict()["store.weight"].index_select(0, torch.from_numpy(np.concatenate(source)))
    schema, representation = bundle.manifest.schema_, bundle.manifest.representation
    widened = stage_from_tensors(representation, schema, vocabularies, {"store.weight": weight})
    encoder = Encoder(schema, vocabularies, old.standards)
    return DLRM(widened, bundle.model().net).eval(), encoder


def _with_reserved(old: Vocabulary, rows: int) -> Vocabulary:
    if not rows:
        return old
    if old.values is None:
        raise BundleError(f"table '{old.table}' has a row for each integer below {old.size}: none is new")
    if not old.specials or old.oov != "row":
        raise BundleError(f"table '{old.table}' refuses unknown values: it has no row that new ones begin as")
    specials = old.rank_of_id[old.size :]
    return replace(
        old,
        size=old.size + rows,
        values=pa.concat_arrays([old.values, pa.nulls(rows, old.values.type)]),
        rank_of_id=np.concatenate((old.rank_of_id[: old.size], old.rows + np.arange(rows), specials)),
        counts=np.concatenate((old.counts, np.zeros(rows, np.int64))),
    )
