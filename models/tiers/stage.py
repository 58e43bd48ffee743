"""Opens a bundle's embedding stage with its rows gathered through tiers.

This works for every representation that stores rows: all rows of a table, the table of a hybrid, the stored
prefix of a computed one. A stack is opened once per bundle, however many lanes gather through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from polyrec.models.embeddings.computed import ComputedStage, HybridStage
from polyrec.models.embeddings.lookups import FusedRows
from polyrec.models.embeddings.stage import Stage
from polyrec.models.embeddings.store import quantize
from polyrec.models.embeddings.table import TableStage
from polyrec.models.errors import RuntimeUnavailable
from polyrec.models.schema.batch import Batch
from polyrec.models.schema.encoder import Encoder
from polyrec.models.tiers.opening import open_stack, rows_of_weight
from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.shared.slab_reader import SlabReader
from polyrec.models.tiers.slab import Bytes, Slab
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.tier_settings import TierSettings
from polyrec.models.tiers.updates.changes import Changes

if TYPE_CHECKING:
    from polyrec.models.bundle.bundle import Bundle
    from polyrec.models.bundle.weights import BundleWeights


def open_tiers(
    bundle: Bundle | BundleWeights,
    placement: TierSettings,
    device: torch.device | str = "cpu",
    encoder: Encoder | None = None,
    changes: Changes | None = None,
) -> TierStack:
    """Copies a bundle's stored rows, of all widths, into the tiers of a placement.

    The caller must close the stack after its last use.
    device: where the device tier is. encoder: replaces the bundle's encoder, for the same row order.
    changes: updates of the bundle's rows on that device, to be included.
    Raises RuntimeUnavailable if no rows are stored, and as `open_stack` does.
    """
    from polyrec.models.bundle.bundle import Bundle

    stage = _storing(bundle.at_width(None).stage())
    weight = stage.state_dict()["store.weight"]
    row_format = RowFormat(stage.store.width, bundle.manifest.representation.precision)
    sizes = _sizes(stage)
    if not sum(sizes.values()):
        raise RuntimeUnavailable("placement: the representation stores no rows, there is nothing to place")
    if encoder is None and isinstance(bundle, Bundle):
        encoder = bundle.encoder
    stored = rows_of_weight(weight, row_format, sizes, _computed_unknown(stage, encoder, row_format))
    return open_stack(stored, placement, encoder, device, changes, version=bundle.manifest.version)


def stored_rows(bundle: Bundle | BundleWeights) -> dict[str, int]:
    """Returns the number of rows of each table that a representation stores; empty if it stores none."""
    part = _part(bundle.stage())
    sizes = _sizes(part) if isinstance(part, TableStage | ComputedStage) else {}
    return sizes if sum(sizes.values()) else {}


def open_stage(
    bundle: Bundle | BundleWeights, tiers: TierStack | Slab | None, device: torch.device | str = "cpu"
) -> Stage:
    """Opens the bundle's stage on a device, over tiers of its rows if given."""
    if tiers is not None:
        return stage_on_tiers(bundle, tiers, device)
    return bundle.stage().to(torch.device(device))


def stage_on_tiers(
    bundle: Bundle | BundleWeights, tiers: TierStack | Slab, device: torch.device | str = "cpu"
) -> Stage:
    """Creates a stage of the bundle that gathers through a stack, or reads the slab of another process's
    stack.

    Its other parts are on `device`. Raises RuntimeUnavailable for rows that cannot be read from a slab.
    """
    stage = bundle.stage()
    storing = _storing(stage)
    stored = storing.store
    width = bundle.width and stored.width
    if isinstance(tiers, Slab) and not isinstance(storing, TableStage):
        raise RuntimeUnavailable(
            f"placement: the rows of a {type(storing).__name__} are read by their own process"
        )
    rows = SlabReader(tiers, stored.rows, width) if isinstance(tiers, Slab) else TieredRows(tiers, width)
    if rows.rows != stored.rows or rows.width != stored.width:
        raise ValueError("the tiers were opened for another bundle")
    del storing.store
    storing.store = rows
    return stage.to(torch.device(device))


def slab_reader(stage: Stage) -> SlabReader | None:
    """Returns the store of a stage that reads another process's slab; None if it has none."""
    store = getattr(_part(stage), "store", None)
    return store if isinstance(store, SlabReader) else None


def tiered_rows(stage: Stage) -> TieredRows | None:
    """Returns the tiered store of a stage; None if it has none."""
    store = getattr(_part(stage), "store", None)
    return store if isinstance(store, TieredRows) else None


def fused_rows(stage: Stage) -> FusedRows | None:
    """Returns the object that maps a batch to rows of the fused weight; None if the stage computes its
    vectors.
    """
    part = _part(stage)
    return part.rows if isinstance(part, TableStage) else None


def prefetch(stage: Stage, batch: Batch) -> int:
    """Starts reading a queued batch's rows from the file; returns the number of pages.

    Does not wait, and may be called from any thread. Does nothing without a disk tier.
    """
    rows, fused = tiered_rows(stage), fused_rows(stage)
    if rows is None or fused is None or rows.stack.tiers.disk is None:
        return 0
    return rows.prefetch(fused.lookups(batch).rows())


def _sizes(stage: TableStage | ComputedStage) -> dict[str, int]:
    stored = stage.rows.sizes if isinstance(stage, TableStage) else stage.cuts.tolist()
    return dict(zip(stage.rows.tables, stored, strict=True))


def _computed_unknown(
    stage: TableStage | ComputedStage, encoder: Encoder | None, row_format: RowFormat
) -> dict[str, Bytes]:
    """Returns the out-of-vocabulary rows that a representation computes, by table, in the stored format."""
    if encoder is None or not isinstance(stage, ComputedStage):
        return {}
    found: dict[str, Bytes] = {}
    for table, size in _sizes(stage).items():
        vocabulary = encoder.vocabularies[table]
        if vocabulary.specials and (rank := int(vocabulary.rank_of_id[vocabulary.oov_id])) >= size:
            with torch.inference_mode():
                vector = stage.vectors(np.array([stage.rows.base[table] + rank]))
                row = quantize(vector, row_format.precision).contiguous().view(torch.uint8)
            found[table] = row.numpy().reshape(-1)
    return found


def _part(stage: Stage | nn.Module) -> Stage | nn.Module:
    """Returns the part of a stage that may store rows: of a hybrid, its table."""
    return stage.table if isinstance(stage, HybridStage) else stage


def _storing(stage: Stage | nn.Module) -> TableStage | ComputedStage:
    part = _part(stage)
    if not isinstance(part, TableStage | ComputedStage):
        raise RuntimeUnavailable(f"placement: a {type(part).__name__} has no rows to place")
    return part
