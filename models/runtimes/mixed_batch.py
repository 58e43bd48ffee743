"""Executes the plain and the ranking rows of a merged batch separately, as each would be executed alone.

A plain row and a ranking row with the same values have the same logit up to the order of additions, which in
bf16 and int8 changes roundings and thus the probability. If a batch were executed in one form, a plain
request would be answered differently when a ranking request shares its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from polyrec.models.dlrm.dlrm import Inputs
from polyrec.models.schema.batch import F32


def split_plain_and_ranking(inputs: Inputs, plain_rows: int) -> tuple[Inputs, ...]:
    """Splits an embedded batch into plain and ranking rows; empty parts are left out.

    plain_rows: see polyrec.models.schema.batch.Batch; their contexts come first.
    """
    row = inputs.context_row
    if row is None or not plain_rows:
        return (inputs,)
    dense_context, dense_candidate, context, candidate = (x[:plain_rows] for x in inputs[:4])
    plain = Inputs(dense_context, dense_candidate, context, candidate, None)
    if plain_rows == row.shape[0]:
        return (plain,)
    dense_context, dense_candidate, context, candidate = (x[plain_rows:] for x in inputs[:4])
    row = row[plain_rows:] - plain_rows
    return plain, Inputs(dense_context, dense_candidate, context, candidate, row)


def run_parts(parts: Sequence[Inputs], run: Callable[[Inputs], F32]) -> F32:
    """Runs the dense net on each part; returns float32 [rows of all parts], in order."""
    found = [run(part) for part in parts]
    return found[0] if len(found) == 1 else np.concatenate(found)


def with_own_contexts(inputs: Inputs) -> Inputs:
    """Returns inputs in which row r has context r: shared contexts are repeated."""
    row = inputs.context_row
    if row is None:
        return inputs
    return Inputs(inputs[0][row], inputs[1], inputs[2][row], inputs[3], None)
