"""Copies a bundle's rows and weights into a model with continued vocabularies.

The net and the decoders are the bundle's. A known id keeps its row, whatever its new rank; a new id gets the
row that an untrained model has at its rank.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.dlrm.dlrm import DLRM
from polyrec.models.dlrm.representation import Representation, initial_stage
from polyrec.models.embeddings.computed import ComputedStage, HybridStage
from polyrec.models.embeddings.stage import Stage
from polyrec.models.embeddings.store import FloatRows
from polyrec.models.embeddings.table import TableStage
from polyrec.models.errors import DataError
from polyrec.models.schema.batch import I64
from polyrec.models.schema.continuation import NEW, old_ranks
from polyrec.models.schema.vocabulary import Vocabulary


def continued_representation(bundle: Bundle, vocabularies: Mapping[str, Vocabulary]) -> Representation:
    """Returns the representation of continued tables: stored rows stay stored, computed ones computed."""
    was, before = bundle.manifest.representation, bundle.encoder.vocabularies
    if was.encoding is None:
        return was
    cuts = {t: vocabularies[t].rows if cut == before[t].rows else cut for t, cut in was.cuts.items()}
    first = was.first_rows or {t: v.rows for t, v in before.items()}
    if not was.first_rows and all(v.rows == first[t] for t, v in vocabularies.items()):
        first = {}
    return was.model_copy(update={"cuts": cuts, "first_rows": first})


def stored_in_part(bundle: Bundle) -> dict[str, int]:
    """Returns the number of stored rows of each table that stores some rows and computes others."""
    rows = {t: v.rows for t, v in bundle.encoder.vocabularies.items()}
    return {t: cut for t, cut in bundle.manifest.representation.cuts.items() if 0 < cut < rows[t]}


def continued_model(
    bundle: Bundle, vocabularies: Mapping[str, Vocabulary], seed: int, spread: float | None
) -> DLRM:
    """Returns a model, to be trained further, that predicts like the bundle for ids that both know.

    Batch norms of decoders are folded into their weights and not trained again. seed, spread: for new rows,
    see models/dlrm/representation.py.
    Raises DataError if a table has outgrown the hash codes of its representation.
    """
    representation = continued_representation(bundle, vocabularies)
    if representation.encoding is not None:
        plain = representation.encoding.model_copy(update={"batch_norm": False})
        representation = representation.model_copy(update={"encoding": plain})
    old, model = bundle.stage(), bundle.model()
    schema, width = bundle.manifest.schema_, bundle.manifest.architecture.width
    try:
        stage = initial_stage(representation, schema, vocabularies, width, seed, spread)
    except ValueError as e:
        raise DataError(f"'{bundle.path}' cannot be continued: {e}") from None
    source = {t: old_ranks(v, vocabularies[t]) for t, v in bundle.encoder.vocabularies.items()}
    for (before, was), (after, now) in zip(_stored(old), _stored(stage), strict=True):
        _take_rows(before, was, after, now, source)
    if isinstance(computed := _computed(stage), ComputedStage):
        trained = _computed(old)
        assert isinstance(trained, ComputedStage)
        computed.decoders.load_state_dict(trained.decoders.state_dict())
    return DLRM(stage, model.net)


def _computed(stage: Stage) -> Stage:
    return stage.computed if isinstance(stage, HybridStage) else stage


def _stored(stage: Stage) -> list[tuple[Tensor, dict[str, slice]]]:
    """Returns each weight of stored rows, with the position of each table in it."""
    if isinstance(stage, HybridStage):
        return _stored(stage.table) + _stored(stage.computed)
    assert isinstance(stage, TableStage | ComputedStage)
    assert isinstance(stage.store, FloatRows)
    sizes = stage.cuts.tolist() if isinstance(stage, ComputedStage) else stage.rows.sizes
    places, at = {}, 0
    for table, size in zip(stage.rows.tables, sizes, strict=True):
        places[table] = slice(at, at + size)
        at += size
    return [(stage.store.weight.detach(), places)]


def _take_rows(
    before: Tensor,
    was: Mapping[str, slice],
    after: Tensor,
    now: Mapping[str, slice],
    source: Mapping[str, I64],
) -> None:
    """Copies the rows of known ids from their old ranks to their new ones."""
    for table, place in now.items():
        ranks = torch.from_numpy(source[table][: place.stop - place.start])
        known = ranks != NEW
        after[place][known] = before[was[table]].index_select(0, ranks[known])
