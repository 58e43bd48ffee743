"""Executes the plain and the ranking rows of a merged batch separately, each as if alone.

A plain row and a ranking row with the same values have the same logit up to the order of additions, which in
bf16 and int8 changes roundings and thus the probability. In a single execution, a plain request would be
answered differently when a ranking request shares its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from polyrec.models.dlrm.dlrm import Inputs
from polyrec.models.schema.batch import F32, I64


class HostInputs(NamedTuple):
    """`Inputs` as arrays in host memory; torch tensors would cost 30 us for a small batch."""

    dense_context: F32
    dense_candidate: F32
    context: F32
    candidate: F32
    context_row: I64 | None


AnyInputs = TypeVar("AnyInputs", Inputs, HostInputs)
Part = TypeVar("Part")


def split_plain_and_ranking(inputs: AnyInputs, plain_rows: int) -> tuple[AnyInputs, ...]:
    """Splits an embedded batch into plain and ranking rows; omits empty parts.

    plain_rows: see polyrec.models.schema.batch.Batch; their contexts come first.
    """
    row = inputs.context_row
    if row is None or not plain_rows:
        return (inputs,)
    kind = type(inputs)
    dense_context, dense_candidate, context, candidate = (x[:plain_rows] for x in inputs[:4])
    plain = kind(dense_context, dense_candidate, context, candidate, None)
    if plain_rows == row.shape[0]:
        return (plain,)
    dense_context, dense_candidate, context, candidate = (x[plain_rows:] for x in inputs[:4])
    return plain, kind(dense_context, dense_candidate, context, candidate, row[plain_rows:] - plain_rows)


def run_parts(parts: Sequence[Part], run: Callable[[Part], F32]) -> F32:
    """Runs the dense net on each part; returns float32 [rows of all parts], in order."""
    if len(parts) == 1:
        return run(parts[0])
    return np.concatenate([run(part) for part in parts])


def with_own_contexts(inputs: AnyInputs) -> AnyInputs:
    """Repeats shared contexts, so that row r has context r."""
    row = inputs.context_row
    if row is None:
        return inputs
    return type(inputs)(inputs[0][row], inputs[1], inputs[2][row], inputs[3], None)
