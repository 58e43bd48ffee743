"""Which representation a bundle holds, as its manifest says it.

One class per kind, told apart by `kind`; `stage_from_tensors` builds the embedding stage of any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from models.embeddings.stage import Stage
from models.embeddings.table import TableStage
from models.schema import Schema, Strict


class Table(Strict):
    """Every id has a row (models/embeddings/table.py)."""

    kind: Literal["table"] = "table"


Representation = Table


def stage_from_tensors(
    representation: Representation,
    schema: Schema,
    table_rows: Mapping[str, int],
    tensors: Mapping[str, Tensor],
) -> Stage:
    """The embedding stage over the tensors that its `state_dict` was saved as."""
    return TableStage(schema, table_rows, tensors["weight"])
