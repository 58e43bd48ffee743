"""Records the range of the inputs of each linear layer, for int8 products with static scales.

Computing a scale per row would take a quarter of the net's time, so one scale for all rows is found on data
when a bundle is trained or calibrated. A few extreme rows would make that scale too coarse, so a share BEYOND
of the inputs may exceed the range and saturates. A row's answer still depends on that row alone. For a
comparison of shares, see docs/results/representations.md.
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
"""Maximum number of rows to observe."""
BATCH_ROWS = 4096
BEYOND = 3e-5
"""Share of a layer's inputs that may be larger than its range."""


class Activations(Strict):
    """Input ranges of a net's linear layers.

    rows: number of rows observed.
    largest: layer name -> largest absolute input, except for a share BEYOND of them. Names are as in the net
        (`bottom.2`, `top.0`, `interaction.down.0`; with nested widths `heads_by_width.16.top.0`).
    """

    rows: Annotated[int, Field(ge=1)]
    largest: dict[
        Annotated[str, Field(min_length=1, max_length=200)],
        Annotated[float, Field(ge=0, allow_inf_nan=False)],
    ]


def observe_activations(
    model: DLRM, batch: Callable[[I64], Batch], rows: I64, beyond: float = BEYOND
) -> Activations | None:
    """Runs the model on data and records the range of each layer's inputs; returns None without rows.

    batch: returns the batch for an array of row numbers. rows: int64, row numbers; if there are more than
    ROWS, an evenly spaced sample is used. beyond: share of a layer's inputs that may exceed its range.
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
    """Collects the largest absolute inputs of each linear layer by name, in descending order.

    Keeps one more than the share `beyond` of a layer's inputs over all rows.
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
