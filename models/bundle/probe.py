"""A few rows that every model must be able to answer, asked before anybody else asks.

Numbers that are finite each may still overflow in a product: such a model loads, and then has no answer for
anybody. Rows of missing, of unknown and of the most frequent values tell. Every layer is looked at, not only
the answer, in which a ReLU or a sigmoid may have made something finite of an infinity.
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
"""What the rows of a probe are of."""
NUMBERS = (0.0, 0.0, 0.0, 4.0, -4.0)
"""Their dense values, in deviations where the schema standardizes; a missing one is what the schema says."""


def find_non_finite_row(model: DLRM, encoder: Encoder) -> str | None:
    """The first row of the probe that a layer has no finite number for, in words; None if there is none."""
    if not all(vocabulary.rows for vocabulary in encoder.vocabularies.values()):
        return None  # a table without rows: nothing can be asked
    batch = probe(encoder)
    with torch.inference_mode(), _finite_outputs(model) as finite:
        model(batch)
    rows = torch.stack([layer.flatten(1).all(1).cpu() for layer in finite]).all(0)
    return None if rows.all() else f"a row of {ROWS[int(rows.int().argmin())]} has no finite answer"


@contextmanager
def _finite_outputs(model: DLRM) -> Iterator[list[Tensor]]:
    """Which numbers are finite in what each layer gives, bool [rows, ...]."""
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
    """A plain batch of `ROWS`."""
    context, candidate = (_block(encoder, role) for role in ROLES)
    return Batch(context, candidate)


def _block(encoder: Encoder, role: Role) -> Block:
    layout = encoder.schema.layout(role)
    dense = np.repeat(np.array(NUMBERS, np.float32)[:, None], len(layout.dense), axis=1)
    with np.errstate(over="ignore"):  # a schema may say 1e308
        dense[0] = [d.missing for d in layout.dense]
    ranks = np.zeros((len(ROWS), len(layout.singles)), np.int64)
    for i, f in enumerate(layout.singles):
        ranks[:, i] = _ranks(encoder, f)
    # a list has no missing value: it is empty
    bags = [(_ranks(encoder, f)[1:], np.array([0] + [1] * (len(ROWS) - 1))) for f in layout.bags]
    return Block(dense, ranks, *interleave(bags))


def _ranks(encoder: Encoder, feature: Categorical) -> I64:
    """A rank for each of `ROWS`; the most frequent one where the table refuses what is missing or unknown."""
    vocabulary = encoder.vocabulary(feature)
    ranks = np.zeros(len(ROWS), np.int64)
    ranks[:2] = np.maximum([vocabulary.missing_rank, vocabulary.oov_rank], 0)
    return ranks
