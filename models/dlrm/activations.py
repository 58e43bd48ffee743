"""The range of the inputs of each layer of a dense net, which int8 products with static scales need.

A scale that is computed from each row takes a quarter of the net's time. One for all rows must be known
before: it is found on data, when a bundle is trained or calibrated. A few extreme rows would make it too
coarse for all others, so it leaves out a share BEYOND of the numbers, which saturate; an answer still depends
on its own row alone. docs/results/representations.md compares shares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from polyrec.models.dlrm.dlrm import DLRM
from polyrec.models.files import Strict
from polyrec.models.schema.batch import I64, Batch

ROWS = 2**16
"""Maximum rows that are looked at."""
BATCH_ROWS = 4096
BEYOND = 3e-5
"""Share of a layer's inputs that may be larger than its range."""


class Activations(Strict):
    """Ranges of the inputs of a net's layers. rows: how many were looked at.

    largest: absolute input, but for a share BEYOND, by the layer's name in the net: `bottom.2`, `top.0`,
    `interaction.down.0`; with nested widths `heads_by_width.16.top.0`.
    """

    rows: Annotated[int, Field(ge=1)]
    largest: dict[
        Annotated[str, Field(min_length=1, max_length=200)],
        Annotated[float, Field(ge=0, allow_inf_nan=False)],
    ]


def observe_activations(
    model: DLRM, batch: Callable[[I64], Batch], rows: I64, beyond: float = BEYOND
) -> Activations | None:
    """Predicts rows of data and records the range of each layer's inputs; None without rows.

    batch: returns the batch of some rows. rows: int64, its arguments; of more than ROWS, evenly spaced ones
    are taken. beyond: share of a layer's inputs outside of its range.
    """
    if not rows.size:
        return None
    chosen = rows[np.linspace(0, rows.size - 1, min(rows.size, ROWS)).astype(np.int64)]
    model.eval()
    with torch.inference_mode(), _largest_inputs(model.net, chosen.size, beyond) as largest:
        for start in range(0, chosen.size, BATCH_ROWS):
            model.logits(batch(chosen[start : start + BATCH_ROWS]))
    return Activations(rows=chosen.size, largest={name: float(top[-1]) for name, top in largest.items()})


@contextmanager
def _largest_inputs(net: nn.Module, rows: int, beyond: float) -> Iterator[dict[str, Tensor]]:
    """Collects the largest absolute inputs of each linear layer by name, descending.

    As many as are the share `beyond` of the inputs of so many rows, and one more.
    """
    largest: dict[str, Tensor] = {}
    hooks = []
    for name, layer in net.named_modules():
        if isinstance(layer, nn.Linear):
            kept = 1 + int(beyond * rows * layer.in_features)

            def look(
                _layer: nn.Module, inputs: tuple[Tensor, ...], name: str = name, kept: int = kept
            ) -> None:
                found = inputs[0].abs().flatten()
                if name in largest:
                    found = torch.cat((largest[name], found))
                largest[name] = found.topk(min(kept, found.numel())).values

            hooks.append(layer.register_forward_pre_hook(look))
    try:
        yield largest
    finally:
        for hook in hooks:
            hook.remove()
