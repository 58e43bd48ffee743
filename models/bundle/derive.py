"""Derives other representations of a trained model, without data.

    materialize   computed vectors become stored rows: all of them, or the hottest ones (MP-Rec's
                  encoder cache); equal outputs, more bytes, less work
    quantize      stored rows in bf16, int8 or int4; fewer bytes, a measured loss of quality

Both return a model and its representation, for `write_bundle`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.dlrm.dlrm import DLRM
from polyrec.models.dlrm.precision import Precision
from polyrec.models.dlrm.representation import Representation, stage_from_tensors
from polyrec.models.embeddings.computed import ComputedStage, HybridStage
from polyrec.models.embeddings.cuts import stored_within
from polyrec.models.embeddings.decoder import keep_decoders
from polyrec.models.embeddings.store import FloatRows, quantize
from polyrec.models.embeddings.table import TableStage
from polyrec.models.errors import BundleError

ROWS_AT_ONCE = 4096


def materialize(bundle: Bundle, rows: int | None = None) -> tuple[DLRM, Representation]:
    """Stores computed vectors: all of them, or the `rows` most accessed ones over all tables.

    Rows already stored stay stored. A fully materialized dhe or select is a plain table.
    Raises BundleError if nothing is computed, or rows are not fp32 (materialize first, then quantize).
    """
    representation = bundle.manifest.representation
    stage = bundle.stage()
    computed = _fp32(bundle, _computed_part(bundle, stage))
    vocabularies = bundle.encoder.vocabularies
    sizes = dict(zip(computed.rows.tables, computed.rows.sizes, strict=True))
    if rows is None:
        cuts = sizes
    else:
        wanted = stored_within({t: vocabularies[t] for t in sizes}, rows)
        cuts = {t: max(wanted.get(t, 0), representation.cuts.get(t, 0)) for t in sizes}
    weight = _rows_of(computed, cuts)
    if rows is None and not isinstance(stage, HybridStage):
        return _with_stage(bundle, Representation(), {"store.weight": weight}), Representation()
    new = representation.model_copy(update={"cuts": cuts})
    prefix = "computed." if isinstance(stage, HybridStage) else ""
    tensors = {**stage.state_dict(), f"{prefix}store.weight": weight}
    keep = [i for i, t in enumerate(computed.computed_tables) if cuts[t] < sizes[t]]
    head = f"{prefix}decoders."
    decoders = {n.removeprefix(head): tensors.pop(n) for n in list(tensors) if n.startswith(head)}
    tensors |= {f"{head}{name}": tensor for name, tensor in keep_decoders(decoders, keep).items()}
    return _with_stage(bundle, new, tensors), new


def quantize_bundle(bundle: Bundle, precision: Precision) -> tuple[DLRM, Representation]:
    """Converts stored fp32 rows to another precision. Raises BundleError if they are not fp32."""
    representation = bundle.manifest.representation
    if representation.precision != "fp32":
        raise BundleError(f"'{bundle.path}' has {representation.precision} rows; quantize from fp32")
    odd = [width for width in bundle.widths if width % 2]
    if odd and precision == "int4":
        raise BundleError(f"'{bundle.path}': int4 packs two numbers a byte: a width of {odd[0]} is odd")
    state = bundle.stage().state_dict()
    try:
        tensors = {n: quantize(t, precision) if n.endswith("store.weight") else t for n, t in state.items()}
    except ValueError as e:
        raise BundleError(f"'{bundle.path}': {e}") from None
    new = representation.model_copy(update={"precision": precision})
    return _with_stage(bundle, new, tensors), new


def _with_stage(bundle: Bundle, new: Representation, tensors: Mapping[str, Tensor]) -> DLRM:
    schema, vocabularies = bundle.manifest.schema_, bundle.encoder.vocabularies
    return DLRM(stage_from_tensors(new, schema, vocabularies, tensors), bundle.model().net).eval()


def _computed_part(bundle: Bundle, stage: object) -> ComputedStage:
    part = stage.computed if isinstance(stage, HybridStage) else stage
    if isinstance(part, TableStage) or not isinstance(part, ComputedStage) or not part.computed_tables:
        raise BundleError(f"'{bundle.path}' computes no vectors: there is nothing to materialize")
    return part


def _fp32(bundle: Bundle, stage: ComputedStage) -> ComputedStage:
    if not isinstance(stage.store, FloatRows) or stage.store.weight.dtype is not torch.float32:
        raise BundleError(f"'{bundle.path}' has quantized rows; materialize first, then quantize")
    return stage


def _rows_of(stage: ComputedStage, cuts: Mapping[str, int]) -> Tensor:
    """Returns the first `cuts[table]` rows of each table, float32, table by table."""
    parts = []
    with torch.inference_mode():
        for table in stage.rows.tables:
            base = stage.rows.base[table]
            for start in range(0, cuts[table], ROWS_AT_ONCE):
                rows = np.arange(base + start, base + min(start + ROWS_AT_ONCE, cuts[table]))
                parts.append(stage.vectors(rows).clone())
    return torch.cat(parts) if parts else torch.empty((0, stage.width))
