"""Converts a foreign model to a bundle.

Every importer produces the same `ForeignModel`: tables, layers and the interaction. Here they get a schema
(d0..., c0..., all in the candidate role, because a checkpoint has no names and no contexts), tables without
special rows (missing or unknown ids are refused, because the original model has no trained row for them), and
identity
ranks: access counts are unknown, so the row numbers of the checkpoint are the ids that clients send.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.models.dlrm.dlrm import DLRM, Architecture, DenseNet, dense_slots
from polyrec.models.dlrm.interaction import Cross
from polyrec.models.dlrm.representation import Representation
from polyrec.models.embeddings.table import TableStage
from polyrec.models.files import one_line
from polyrec.models.importers.checkpoint import CheckpointWeights, LinearLayer
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import Categorical, Dense, Label, Pooling, Schema, Split
from polyrec.models.schema.vocabulary import Vocabulary

LABEL, SPLIT = "label", "split"

_CHUNK = 1 << 22
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


@dataclass(frozen=True, slots=True)
class Crossing:
    """One low-rank cross layer: down float [rank, joined], up float [joined, rank] with its bias."""

    down: Tensor
    up: LinearLayer


@dataclass(frozen=True, slots=True)
class ForeignModel:
    """Weights and structure of a DLRM, with checked shapes.

    tables: name in the checkpoint -> float [rows, width]. features: the table of each categorical
    feature, in the order in which the interaction sees their vectors. bottom, top: the layers of the
    two MLPs, ReLU behind each but the last of `top`, which gives the logit. Columns of `top[0]` are in
    the order of models/dlrm/interaction.py.
    """

    format: str
    weights: CheckpointWeights
    tables: Mapping[str, Tensor]
    features: tuple[str, ...]
    bottom: tuple[LinearLayer, ...]
    top: tuple[LinearLayer, ...]
    interaction: str
    itself: bool = False
    crossings: tuple[Crossing, ...] = ()

    @property
    def architecture(self) -> Architecture:
        """Raises ValidationError where Polyrec's limits are exceeded."""
        widths = [layer.weight.shape[0] for layer in self.bottom]
        shape = {
            "width": widths[-1],
            "bottom": tuple(widths[:-1]),
            "top": tuple(layer.weight.shape[0] for layer in self.top[:-1]),
            "interaction": self.interaction,
            "itself": self.itself,
        }
        if self.crossings:
            shape |= {"cross_layers": len(self.crossings), "cross_rank": self.crossings[0].down.shape[0]}
        return Architecture.model_validate(shape)


def check_width(
    weights: CheckpointWeights, tables: Mapping[str, Tensor], bottom: tuple[LinearLayer, ...]
) -> int:
    """Returns the common width D of all tables and the bottom MLP. Raises CheckpointError."""
    (first, table), *others = tables.items()
    width = table.shape[1]
    for name, other in others:
        if other.shape[1] != width:
            raise weights.error(
                f"table {name} has vectors of {other.shape[1]} numbers, {first} of {width}; "
                "tables of mixed widths cannot be imported"
            )
    last = bottom[-1]
    if last.weight.shape[0] != width:
        raise weights.error(
            f"{last.name} gives {last.weight.shape[0]} numbers a row, the tables have vectors of {width}"
        )
    return width


def check_logit(weights: CheckpointWeights, last: LinearLayer) -> None:
    """Raises CheckpointError unless the last layer gives one number a row."""
    if last.weight.shape[0] != 1:
        raise weights.error(
            f"{last.name} gives {last.weight.shape[0]} numbers a row; a click model gives one"
        )


def write_foreign_model(
    model: ForeignModel,
    out: str | Path,
    name: str,
    single_valued: bool = False,
    pooling: Pooling = "sum",
    max_length: int = 256,
    replace: bool = False,
    progress: Callable[[int], object] | None = None,
) -> Bundle:
    """Writes the bundle of a foreign model; `progress` is called with the rows copied.

    name: of the schema. single_valued: one id per feature and row, instead of a list pooled by `pooling`
    with at most `max_length` ids. Raises CheckpointError or BundleError.
    """
    try:
        schema = _schema(model, name, None if single_valued else pooling, max_length)
        architecture = model.architecture
    except ValidationError as e:
        raise model.weights.error(one_line(e)) from None
    sources = dict(zip(schema.tables, dict.fromkeys(model.features), strict=True))
    rows = {table: int(model.tables[source].shape[0]) for table, source in sources.items()}
    stage = TableStage(schema, rows, _fused(model, list(sources.values()), progress))
    net = DenseNet(architecture, dense_slots(schema), stage.slots)
    _fill(net, model)
    vocabularies = {
        table: Vocabulary(
            table, "integer", n, np.arange(n), np.zeros(n, np.int64), specials=False, oov="refuse"
        )
        for table, n in rows.items()
    }
    origin = {"format": model.format, "file": model.weights.file.name, "tables": sources}
    return write_bundle(
        out,
        DLRM(stage, net),
        Representation(),
        Encoder(schema, vocabularies, {}),
        metrics={},
        training={"imported": origin},
        replace=replace,
    )


def _schema(model: ForeignModel, name: str, pooling: Pooling | None, max_length: int) -> Schema:
    named = all(_NAME.fullmatch(table) for table in model.tables)
    table_of: dict[str, str] = {}
    categorical = []
    for i, source in enumerate(model.features):
        table = table_of.setdefault(source, source if named else f"c{i}")
        categorical.append(
            Categorical(
                name=f"c{i}",
                type="integer",
                table=table if table != f"c{i}" else None,
                cardinality=int(model.tables[source].shape[0]),
                oov="refuse",
                pooling=pooling,
                max_length=max_length,
            )
        )
    return Schema(
        name=name,
        dense=tuple(Dense(name=f"d{i}") for i in range(model.bottom[0].weight.shape[1])),
        categorical=tuple(categorical),
        label=Label(column=LABEL),
        split=Split(rule="column", columns=(SPLIT,)),
    )


def _fused(model: ForeignModel, sources: list[str], progress: Callable[[int], object] | None) -> Tensor:
    """Copies all tables into one float32 weight, in small pieces."""
    width = model.tables[sources[0]].shape[1]
    weight = torch.empty(sum(model.tables[s].shape[0] for s in sources), width)
    step = max(1, _CHUNK // width)
    at = 0
    for source in sources:
        table = model.tables[source]
        for start in range(0, table.shape[0], step):
            piece = table[start : start + step]
            copied = weight[at : at + piece.shape[0]].copy_(piece)
            if not torch.isfinite(copied).all():
                raise model.weights.error(f"table {source} holds a number that is not finite")
            at += piece.shape[0]
            if progress:
                progress(piece.shape[0])
    return weight


def _fill(net: DenseNet, model: ForeignModel) -> None:
    """Copies the layers into the net."""
    linears = [
        *(m for m in net.bottom or () if isinstance(m, nn.Linear)),
        *(m for m in net.top if isinstance(m, nn.Linear)),
        net.output,
    ]
    with torch.no_grad():
        for linear, layer in zip(linears, (*model.bottom, *model.top), strict=True):
            linear.weight.copy_(layer.weight)
            linear.bias.copy_(layer.bias)
        if isinstance(net.interaction, Cross):
            state = {}
            for i, crossing in enumerate(model.crossings):
                state[f"down.{i}.weight"] = crossing.down
                state[f"up.{i}.weight"], state[f"up.{i}.bias"] = crossing.up.weight, crossing.up.bias
            net.interaction.load_state_dict(state)
