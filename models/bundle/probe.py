"""Probes a model with a few rows before it is served.

Finite weights may still overflow in a product; such a model would load and then fail on every request. The
probe has rows of missing, unknown and most frequent values. It checks every layer's output, because a ReLU or
a sigmoid can hide an infinity.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from polyrec.models.dlrm.dlrm import DLRM
from polyrec.models.schema.batch import I64, Batch, Block
from polyrec.models.schema.encoder import Encoder, interleave
from polyrec.models.schema.schema import ROLES, Categorical, Role

ROWS = (
    "missing values",
    "unknown values",
    "the most frequent values",
    "the most frequent values and high numbers",
    "the most frequent values and low numbers",
)
"""Descriptions of the probe's rows, for messages."""
NUMBERS = (0.0, 0.0, 0.0, 4.0, -4.0)
"""Dense values of the rows, in deviations where the schema standardizes; row 0 takes the schema's
`missing`.
"""


def find_non_finite_row(model: DLRM, encoder: Encoder) -> str | None:
    """Describes the first probe row for which a layer's output is not finite; returns None if there is
    none.
    """
    if not all(vocabulary.rows for vocabulary in encoder.vocabularies.values()):
        return None  # a table without rows cannot be looked up
    batch = probe(encoder)
    with torch.inference_mode(), _finite_outputs(model) as finite:
        model.logits(batch)
    rows = torch.stack([layer.flatten(1).all(1).cpu() for layer in finite]).all(0)
    return None if rows.all() else f"a row of {ROWS[int(rows.int().argmin())]} has no finite answer"


@contextmanager
def _finite_outputs(model: DLRM) -> Iterator[list[Tensor]]:
    """Collects which outputs of each layer are finite, bool [rows, ...]."""
    finite: list[Tensor] = []

    def look(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        finite.append(torch.isfinite(output))

    layers = [module for module in model.net.modules() if isinstance(module, nn.Linear)]
    hooks = [layer.register_forward_hook(look) for layer in layers]
    try:
        yield finite
    finally:
        for hook in hooks:
            hook.remove()


def probe(encoder: Encoder) -> Batch:
    """Builds the plain batch described by `ROWS`."""
    context, candidate = (_block(encoder, role) for role in ROLES)
    return Batch(context, candidate)


def _block(encoder: Encoder, role: Role) -> Block:
    layout = encoder.schema.layout(role)
    dense = np.repeat(np.array(NUMBERS, np.float32)[:, None], len(layout.dense), axis=1)
    with np.errstate(over="ignore"):  # a schema may contain 1e308
        dense[0] = [d.missing for d in layout.dense]
    ranks = np.zeros((len(ROWS), len(layout.singles)), np.int64)
    for i, f in enumerate(layout.singles):
        ranks[:, i] = _ranks(encoder, f)
    # a list has no missing value; it is empty instead
    bags = [(_ranks(encoder, f)[1:], np.array([0] + [1] * (len(ROWS) - 1))) for f in layout.bags]
    return Block(dense, ranks, *interleave(bags))


def _ranks(encoder: Encoder, feature: Categorical) -> I64:
    """Returns a rank for each of `ROWS`; the most frequent value's if the table refuses missing or unknown
    values.
    """
    vocabulary = encoder.vocabulary(feature)
    ranks = np.zeros(len(ROWS), np.int64)
    ranks[:2] = np.maximum([vocabulary.missing_rank, vocabulary.oov_rank], 0)
    return ranks
