"""Reads a checkpoint of facebookresearch/dlrm (dlrm_s_pytorch.py --save-model).

    emb_l.N.weight                a table, one per feature, sum-pooled
    emb_l.N.embs.weight           or a table with its own width (--md-flag), with a projection to the others'
    emb_l.N.proj.weight           width, if it is narrower
    v_W_l.N                       a learned weight per row of the table (--weighted-pooling)
    bot_l.0, bot_l.2, ...         Linear, each followed by ReLU
    top_l.0, top_l.2, ...         Linear with ReLU in between, a sigmoid at the end

The interaction is not in the file. By default it is `dot` without self-interaction; it is verified by the
number of columns of the first top layer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from polyrec.models.importers.checkpoint import CheckpointWeights, read_weights
from polyrec.models.importers.foreign_model import ForeignModel, check_logit
from polyrec.models.importers.table_rows import TableRows, float_rows, projected, scaled
from polyrec.models.importers.widths import check_equal_widths, joined_width, with_equal_widths


def read_dlrm(
    path: str | Path, interaction: Literal["dot", "cat"] = "dot", itself: bool = False
) -> ForeignModel:
    """Reads a checkpoint of facebookresearch/dlrm.

    itself: whether the dot interaction includes each vector's product with itself
    (--arch-interaction-itself).
    Raises CheckpointError with one line: unsafe, incomplete, another interaction, or an unsupported kind of
    table.
    """
    weights = read_weights(path, "dlrm")
    if found := weights.names(r"(emb_l\.\d+\.weight_[qr])"):
        raise weights.error(
            f"{found[0]}: a model with quotient-remainder tables (--qr-flag) cannot be imported"
        )
    if itself and interaction != "dot":
        raise weights.error("--interact-itself goes with --interaction dot")
    numbers = [int(n) for n in weights.names(r"emb_l\.(\d{1,6})\.(?:embs\.)?weight")]
    count = max(numbers, default=0) + 1
    if count > len(numbers):
        absent = next(n for n in range(count) if n not in numbers)
        raise weights.error(f"emb_l.{absent}.weight is missing")
    tables = {f"emb_l.{n}": _table(weights, n) for n in range(count)}
    bottom, top = weights.mlp("bot_l.", step=2), weights.mlp("top_l.", step=2)
    weights.finish("facebookresearch/dlrm")
    check_logit(weights, top[-1])
    features, reads = tuple(tables), top[0].weight.shape[1]
    if interaction == "cat":
        joined = joined_width(tables, features, bottom)
        _check_interaction(weights, interaction, itself, reads, count + 1, bottom[-1].weight.shape[0], joined)
        equal = with_equal_widths(tables, features, bottom, top[0])
        tables, bottom, top = dict(equal.tables), equal.bottom, (equal.first, *top[1:])
    else:
        width = check_equal_widths(weights, tables, bottom)
        joined = (count + 1) * width
        _check_interaction(weights, interaction, itself, reads, count + 1, width, joined)
    return ForeignModel("dlrm", weights, tables, features, bottom, top, interaction, itself)


def _table(weights: CheckpointWeights, number: int) -> TableRows:
    """Takes a table, its projection and its row weights. Raises CheckpointError."""
    name = f"emb_l.{number}"
    mixed = weights.dtype(f"{name}.embs.weight") is not None
    table = float_rows(weights.take(f"{name}.{'embs.' if mixed else ''}weight", 2, check_finite=False))
    if mixed and weights.dtype(f"{name}.proj.weight") is not None:
        projection = weights.take(f"{name}.proj.weight", 2)
        if projection.shape[1] != table.width:
            raise weights.error(
                f"{name}.proj.weight reads {projection.shape[1]} numbers a row, the table has {table.width}"
            )
        table = projected(table, projection)
    if weights.dtype(f"v_W_l.{number}") is not None:
        weight = weights.take(f"v_W_l.{number}", 1)
        if weight.shape[0] != table.rows:
            raise weights.error(f"v_W_l.{number} has {weight.shape[0]} weights, {name} {table.rows} rows")
        table = scaled(table, weight)
    return table


def _check_interaction(
    weights: CheckpointWeights,
    interaction: str,
    itself: bool,
    reads: int,
    vectors: int,
    width: int,
    joined: int,
) -> None:
    """Raises CheckpointError unless the top MLP reads as many numbers as the interaction yields.

    width: of a vector. joined: of all vectors, concatenated.
    """
    gives = {
        ("dot", False): width + vectors * (vectors - 1) // 2,
        ("dot", True): width + vectors * (vectors + 1) // 2,
        ("cat", False): joined,
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
