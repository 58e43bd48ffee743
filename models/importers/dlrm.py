"""Reads a checkpoint of facebookresearch/dlrm (dlrm_s_pytorch.py --save-model).

    emb_l.N.weight                a table, one per feature, sum-pooled
    bot_l.0, bot_l.2, ...         Linear, each followed by ReLU
    top_l.0, top_l.2, ...         Linear with ReLU between, a sigmoid at the end

The interaction is not in the file: it is `dot` without self-interaction by default, and verified by the
number of columns of the first top layer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from polyrec.models.importers.checkpoint import CheckpointWeights, read_weights
from polyrec.models.importers.foreign_model import ForeignModel, check_logit, check_width

_UNSUPPORTED = {
    r"(v_W_l)\..*": "weighted pooling (--weighted-pooling)",
    r"(emb_l\.\d+\.weight_[qr])": "quotient-remainder tables (--qr-flag)",
    r"(emb_l\.\d+\.(?:embs|proj)\.weight)": "mixed-dimension tables (--md-flag)",
}


def read_dlrm(
    path: str | Path, interaction: Literal["dot", "cat"] = "dot", itself: bool = False
) -> ForeignModel:
    """Reads a checkpoint of facebookresearch/dlrm.

    itself: the dot interaction holds each vector's product with itself (--arch-interaction-itself).
    Raises CheckpointError, in one line: unsafe, incomplete, of another interaction or kind of table.
    """
    weights = read_weights(path, "dlrm")
    for pattern, trick in _UNSUPPORTED.items():
        if found := weights.names(pattern):
            raise weights.error(f"{found[0]}: a model with {trick} cannot be imported")
    if itself and interaction != "dot":
        raise weights.error("--interact-itself goes with --interaction dot")
    numbers = [int(n) for n in weights.names(r"emb_l\.(\d{1,6})\.weight")]
    count = max(numbers, default=0) + 1
    if count > len(numbers):
        absent = next(n for n in range(count) if n not in numbers)
        raise weights.error(f"emb_l.{absent}.weight is missing")
    tables = {f"emb_l.{n}": weights.take(f"emb_l.{n}.weight", 2, check_finite=False) for n in range(count)}
    bottom, top = weights.mlp("bot_l.", step=2), weights.mlp("top_l.", step=2)
    weights.finish("facebookresearch/dlrm")
    width = check_width(weights, tables, bottom)
    check_logit(weights, top[-1])
    _check_interaction(weights, interaction, itself, top[0].weight.shape[1], count + 1, width)
    return ForeignModel("dlrm", weights, tables, tuple(tables), bottom, top, interaction, itself)


def _check_interaction(
    weights: CheckpointWeights, interaction: str, itself: bool, reads: int, vectors: int, width: int
) -> None:
    gives = {
        ("dot", False): width + vectors * (vectors - 1) // 2,
        ("dot", True): width + vectors * (vectors + 1) // 2,
        ("cat", False): vectors * width,
    }
    flags = {key: f"--interaction {key[0]}" + (" --interact-itself" if key[1] else "") for key in gives}
    chosen = (interaction, itself)
    if gives[chosen] == reads:
        return
    fits = [flags[key] for key, n in gives.items() if n == reads]
    offer = "; ".join(f"{flags[key]} gives {n}" for key, n in gives.items())
    raise weights.error(
        f"top_l.0.weight reads {reads} numbers a row, {flags[chosen]} gives {gives[chosen]}; "
        + (
            f"it fits {fits[0]}: say so"
            if fits
            else f"no interaction of {vectors} vectors of {width} fits: {offer}"
        )
    )
