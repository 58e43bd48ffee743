"""The rows of a merged batch by form: plain rows and ranking rows, each executed as they would be alone.

A plain row and a ranking row with the same values have the same logit up to the order of additions, which in
bf16 and int8 means other roundings and another probability. Were a batch executed in one form, a plain
request would be answered differently whenever a ranking request shares its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from polyrec.models.dlrm.dlrm import Inputs
from polyrec.models.schema.batch import F32


def split_plain_and_ranking(inputs: Inputs, plain_rows: int) -> tuple[Inputs, ...]:
    """Plain rows, then ranking rows, of what a batch was embedded to; one of them, if there are no others.

    plain_rows: as polyrec.models.schema.batch.Batch has it; their contexts come first.
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
    """float32 [rows of all parts], in order, the caller's. run: the dense net, for rows of one form."""
    found = [run(part) for part in parts]
    return found[0] if len(found) == 1 else np.concatenate(found)
