"""An untrained dense net that begins as a nearly linear model, as wide and deep ones do (arXiv 1606.07792).

Of few rows a logistic regression learns effects of single ids at once, while a net first has to find them
among all interactions. So two units of each top layer, +z and -z before ReLU, carry a mean of the first
columns of all vectors to the logit, and two units of the bottom a sum of the dense values; the others begin
with little influence on it. No layer is added: training may change all of these weights, and serving does
not know. With hundreds of rows it is no better; with many rows the net finds these effects.

    column 0 of rows ---------------------------.
    dense values --> bottom (+z, -z as columns 0, 1) --> top (+z, -z) --> output (+p, -p)
"""

from __future__ import annotations

import torch
from torch import nn

from polyrec.models.dlrm.dlrm import DenseNet
from polyrec.models.dlrm.interaction import Cross, Dot

PASSED = 0.75
"""Weight of the mean of first columns in the logit. Of a sum, steps of many columns would go too far."""
OTHERS = 0.1
"""Factor of the other weights of the output."""
DENSE = 0.3
"""Factor of the dense values' weights."""


@torch.no_grad()
def start_linear(net: DenseNet) -> None:
    """Changes the initial weights of a net that is not trained yet.

    A net of dot products gets no vectors to add up, one without top layers is linear in them already, and
    one with a layer of one unit has no room; these are left as they are.
    """
    width, top = net.shape.width, _linear(net.top)
    if isinstance(net.interaction, Dot) or not top or min(width, *net.shape.top, *net.shape.bottom) < 2:
        return
    if net.bottom is not None:
        first, *others = _linear(net.bottom)
        first.weight[0] *= DENSE
        first.weight[1] = -first.weight[0]
        _carry(others)
    weight = top[0].weight
    weight[:2] = 0
    weight[0, ::width], weight[1, ::width] = 1, -1
    if net.bottom is not None:
        weight[0, 1], weight[1, 1] = -1, 1
    _carry(top[1:])
    if isinstance(net.interaction, Cross):
        for up in _linear(net.interaction.up):
            up.weight[::width] = 0
            if net.bottom is not None:
                up.weight[1] = 0
    net.output.weight *= OTHERS
    passed = PASSED / (sum(net.slots) + (net.bottom is not None))
    net.output.weight[0, 0], net.output.weight[0, 1] = passed, -passed


def _linear(layers: nn.Sequential | nn.ModuleList) -> list[nn.Linear]:
    return [layer for layer in layers if isinstance(layer, nn.Linear)]


def _carry(layers: list[nn.Linear]) -> None:
    """Lets the first two units pass on those of the layer before."""
    for layer in layers:
        layer.weight[:2] = 0
        layer.weight[0, 0] = layer.weight[1, 1] = 1
