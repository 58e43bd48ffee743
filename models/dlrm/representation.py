"""Describes a bundle's representation, as in its manifest, and builds its embedding stage.

    table    every row is stored
    dhe      every vector is computed, except a materialized prefix of each table, if any
    select   some tables (or the hottest rows of each) are stored, the rest is computed
    hybrid   each feature has a stored and a computed vector

`initial_stage` creates an untrained stage; `stage_from_tensors` opens a stored one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from polyrec.models.dlrm.precision import Precision
from polyrec.models.embeddings.computed import ComputedStage, Encoding, HybridStage, StoredPrefix
from polyrec.models.embeddings.stage import Stage
from polyrec.models.embeddings.store import FloatRows, first_columns, open_rows
from polyrec.models.embeddings.table import TableStage
from polyrec.models.files import Strict
from polyrec.models.schema.schema import Schema
from polyrec.models.schema.vocabulary import Vocabulary

RepresentationKind = Literal["table", "dhe", "select", "hybrid"]
KINDS: tuple[RepresentationKind, ...] = ("table", "dhe", "select", "hybrid")


class RankedVocabulary(Protocol):
    """The part of a vocabulary that a stage needs."""

    @property
    def rows(self) -> int: ...

    @property
    def rank_of_id(self) -> NDArray[np.signedinteger[Any]]:
        """[rows], a permutation; int32 or int64."""
        ...


class Representation(Strict):
    """How ids become vectors.

    precision: of the stored rows.
    cuts: table -> number of its hottest rows that are stored (for a hybrid, in the computed half).
    first_rows: table -> rows when a computed representation was first trained, if it was later continued on
        new data; hash codes are derived from these sizes.
    """

    kind: RepresentationKind = "table"
    precision: Precision = "fp32"
    encoding: Encoding | None = None
    cuts: dict[str, Annotated[int, Field(ge=0, lt=2**48)]] = Field(default_factory=dict)
    first_rows: dict[str, Annotated[int, Field(ge=0, lt=2**48)]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> Representation:
        if (self.kind == "table") != (self.encoding is None):
            does = "takes no" if self.encoding else "needs an"
            raise ValueError(f"representation '{self.kind}' {does} encoding")
        if self.kind == "table" and self.cuts:
            raise ValueError("a table stores every row: it has no cuts")
        if self.kind == "table" and self.first_rows:
            raise ValueError("a table computes no row: it has no first_rows")
        return self

    @property
    def name(self) -> str:
        """Name as in paths: the kind, `-hot` if a DHE has a stored prefix, and the precision unless fp32."""
        hot = "-hot" if self.cuts and self.kind in ("dhe", "hybrid") else ""
        return self.kind + hot + ("" if self.precision == "fp32" else f"-{self.precision}")


def initial_stage(
    representation: Representation,
    schema: Schema,
    vocabularies: Mapping[str, Vocabulary],
    width: int,
    seed: int,
    spread: float | None = None,
) -> Stage:
    """Creates an untrained stage.

    Rows are uniform in +-spread (by default +-1/sqrt(rows) of each table, as in DLRM); decoders start with
    vectors of the same magnitude.
    """
    rows = {t: v.rows for t, v in vocabularies.items()}
    full = TableStage.initial(schema, rows, width, seed, spread)
    if representation.encoding is None:
        return full
    assert isinstance(full.store, FloatRows)
    weight = full.store.weight.detach()
    kept = [weight[full.rows.base[t] :][: representation.cuts.get(t, 0)] for t in full.rows.tables]
    stored, norms = torch.cat(kept).clone(), representation.encoding.batch_norm
    stage = _computed(representation, schema, vocabularies, width, stored, norms=norms)
    deviations = [size**-0.5 if spread is None else spread for size in full.rows.sizes]
    stage.initialize(torch.Generator().manual_seed(seed + 1), deviations)
    return HybridStage(full, stage) if representation.kind == "hybrid" else stage


def stage_from_tensors(
    representation: Representation,
    schema: Schema,
    vocabularies: Mapping[str, RankedVocabulary],
    tensors: Mapping[str, Tensor],
) -> Stage:
    """Builds the embedding stage over the tensors of its saved `state_dict`, without copying them."""
    rows = {t: v.rows for t, v in vocabularies.items()}
    precision = representation.precision
    if representation.encoding is None:
        return TableStage(schema, rows, tensors["store.weight"], precision)
    prefix = "computed." if representation.kind == "hybrid" else ""
    own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    width = _width(representation, own)
    stage = _computed(representation, schema, vocabularies, width, own["store.weight"], precision)
    stage.decoders.load_state_dict(
        {k.removeprefix("decoders."): v for k, v in own.items() if k.startswith("decoders.")}, assign=True
    )
    if representation.kind == "hybrid":
        table = TableStage(schema, rows, tensors["table.store.weight"], precision)
        return HybridStage(table, stage)
    return stage


def narrowed(representation: Representation, tensors: Mapping[str, Tensor], width: int) -> dict[str, Tensor]:
    """Returns the tensors of a stage whose vectors are the first `width` columns of the original ones.

    Rows are views. Of decoders, whose outputs nest, the last layer is partly copied.
    Raises ValueError for int4 rows of odd width.
    """
    last = 0 if representation.encoding is None else len(representation.encoding.hidden)
    decoded = (f"weights.{last}", f"biases.{last}")
    out = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith("store.weight"):
            out[name] = first_columns(tensor, representation.precision, width)
        elif "decoders." in name and name.endswith(decoded):
            out[name] = tensor[..., :width].contiguous()
    return out


def _width(representation: Representation, tensors: Mapping[str, Tensor]) -> int:
    """Returns the width of a computed stage: its decoders' outputs, or without decoders its rows' columns."""
    assert representation.encoding is not None
    last = f"biases.{len(representation.encoding.hidden)}"
    for name, tensor in tensors.items():
        if name.startswith("decoders.") and name.endswith(last):
            return int(tensor.shape[-1])
    return open_rows(tensors["store.weight"], representation.precision).width


def _computed(
    representation: Representation,
    schema: Schema,
    vocabularies: Mapping[str, RankedVocabulary],
    width: int,
    stored: Tensor,
    precision: Precision = "fp32",
    norms: bool = False,
) -> ComputedStage:
    assert representation.encoding is not None
    rows = {t: v.rows for t, v in vocabularies.items()}
    first = representation.first_rows or rows
    if first.keys() != rows.keys() or any(first[t] > n for t, n in rows.items()):
        raise ValueError("first_rows names other tables, or has more rows than a table has now")
    ids = np.concatenate([hashed_ids(vocabularies[t].rank_of_id, first[t]) for t in schema.tables])
    prefix = StoredPrefix(representation.cuts, stored, precision)
    return ComputedStage(schema, rows, representation.encoding, width, prefix, ids, norms, first)


def hashed_ids(rank_of_id: NDArray[np.signedinteger[Any]], first_rows: int) -> NDArray[np.signedinteger[Any]]:
    """Returns the number to hash for each rank, [rows].

    This is the id that the value had when the table had `first_rows` rows. The rows for missing and unknown
    values come after all values, and keep their numbers; ids added since are numbered after them.
    """
    rows, values = rank_of_id.size, first_rows - 2
    numbers = np.arange(rows, dtype=rank_of_id.dtype)
    if rows > first_rows:
        numbers[values:-2] += 2
        numbers[-2:] = (values, values + 1)
    found = np.empty_like(numbers)
    found[rank_of_id] = numbers
    return found
