"""Converts a foreign model to a bundle.

Every importer produces the same `ForeignModel`: tables, layers and the interaction. This module adds a schema
(d0..., c0..., all in the candidate role, because a checkpoint has no names and no contexts). Tables get no
special rows: missing or unknown ids are refused, because the original model has no trained row for them.
Ranks are the identity: access counts are unknown, so clients send the row numbers of the checkpoint as ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from polyrec.models.importers.slot_order import joined_columns
from polyrec.models.importers.table_rows import TableRows
from polyrec.models.progress import RowsDone, ignore_rows
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.feature_names import is_name
from polyrec.models.schema.renaming import check_same_features
from polyrec.models.schema.schema import Categorical, Dense, Label, Pooling, Schema, Split
from polyrec.models.schema.vocabulary import Vocabulary

LABEL, SPLIT = "label", "split"

_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class Crossing:
    """One low-rank cross layer: down float [rank, joined], up float [joined, rank] with its bias."""

    down: Tensor
    up: LinearLayer


@dataclass(frozen=True, slots=True)
class ForeignModel:
    """Weights and structure of a DLRM, with checked shapes.

    tables: by name in the checkpoint, all of one width.
    features: the table of each categorical feature, in the order in which the interaction sees their vectors.
    bottom, top: layers of the two MLPs, each followed by ReLU except the last of `top`, which yields the
    logit. The columns of `top[0]` are in the order of models/dlrm/interaction.py.
    grouped: whether the file may order the tables by pooling while the model's order was not given.
    """

    format: str
    weights: CheckpointWeights
    tables: Mapping[str, TableRows]
    features: tuple[str, ...]
    bottom: tuple[LinearLayer, ...]
    top: tuple[LinearLayer, ...]
    interaction: str
    itself: bool = False
    crossings: tuple[Crossing, ...] = ()
    grouped: bool = False

    @property
    def architecture(self) -> Architecture:
        """Returns the architecture. Raises ValidationError if Polyrec's limits are exceeded."""
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


def check_logit(weights: CheckpointWeights, last: LinearLayer) -> None:
    """Raises CheckpointError unless the last layer yields one number per row."""
    if last.weight.shape[0] != 1:
        raise weights.error(
            f"{last.name} gives {last.weight.shape[0]} numbers a row; a click model gives one"
        )


def write_foreign_model(
    model: ForeignModel,
    out: str | Path,
    name: str,
    single_valued: bool = False,
    pooling: Pooling | Mapping[str, Pooling] = "sum",
    max_length: int = 256,
    schema: Schema | None = None,
    replace: bool = False,
    progress: RowsDone = ignore_rows,
) -> Bundle:
    """Writes the bundle of a foreign model; `progress` is called with the number of rows copied.

    name: of the schema.
    single_valued: one id per feature and row, instead of a list of at most `max_length` ids pooled by
    `pooling` (for all tables, or by table, sum by default).
    schema: describes the same features with its own names, roles, transforms and poolings; replaces name,
    single_valued, pooling and max_length.
    Raises CheckpointError, SchemaError or BundleError.
    """
    poolings = dict.fromkeys(model.tables, pooling) if isinstance(pooling, str) else dict(pooling)
    for table in poolings:
        if table not in model.tables:
            raise model.weights.error(f"pooling of table {table}: the tables are {', '.join(model.tables)}")
    if model.grouped and len({poolings.get(table, "sum") for table in model.tables}) > 1:
        raise model.weights.error(
            "quantized tables of several poolings stand grouped by them in the file; "
            "say the model's order with --tables"
        )
    try:
        invented = _schema(model, name, None if single_valued else poolings, max_length)
        architecture = model.architecture
    except ValidationError as e:
        raise model.weights.error(one_line(e)) from None
    if schema is None:
        schema = invented
    else:
        check_same_features(invented, schema, poolings=False)
        model = _in_order_of(schema, model)
    sources = dict(zip(schema.tables, dict.fromkeys(model.features), strict=True))
    rows = {table: model.tables[source].rows for table, source in sources.items()}
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


def _schema(
    model: ForeignModel, name: str, poolings: Mapping[str, Pooling] | None, max_length: int
) -> Schema:
    named = all(map(is_name, model.tables))
    table_of: dict[str, str] = {}
    categorical = []
    for i, source in enumerate(model.features):
        table = table_of.setdefault(source, source if named else f"c{i}")
        categorical.append(
            Categorical(
                name=f"c{i}",
                type="integer",
                table=table if table != f"c{i}" else None,
                cardinality=model.tables[source].rows,
                oov="refuse",
                pooling=None if poolings is None else poolings.get(source, "sum"),
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


def _in_order_of(schema: Schema, model: ForeignModel) -> ForeignModel:
    """Returns the model with its inputs in the order of the schema's roles; `features` is unchanged."""
    dense = [schema.dense.index(d) for d in schema.context.supplied + schema.candidate.supplied]
    slots = [schema.categorical.index(f) for f in schema.slots]
    (bottom, *others), (top, *above) = model.bottom, model.top
    columns = joined_columns(model.interaction, model.itself, model.bottom[-1].weight.shape[0], slots)
    crossings = model.crossings
    if crossings:
        crossings = tuple(
            Crossing(c.down[:, columns], replace(c.up, weight=c.up.weight[columns], bias=c.up.bias[columns]))
            for c in crossings
        )
    return replace(
        model,
        bottom=(replace(bottom, weight=bottom.weight[:, dense]), *others),
        top=(replace(top, weight=top.weight[:, columns]), *above),
        crossings=crossings,
    )


def _fused(model: ForeignModel, sources: list[str], progress: RowsDone) -> Tensor:
    """Copies all tables into one float32 weight, in small pieces."""
    width = model.tables[sources[0]].width
    weight = torch.empty(sum(model.tables[s].rows for s in sources), width)
    step = max(1, _CHUNK // width)
    at = 0
    for source in sources:
        table = model.tables[source]
        for start in range(0, table.rows, step):
            end = min(start + step, table.rows)
            copied = weight[at : at + end - start].copy_(table.read(start, end))
            if not torch.isfinite(copied).all():
                raise model.weights.error(f"table {source} holds a number that is not finite")
            at += end - start
            progress(end - start)
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
