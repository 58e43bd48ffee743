"""Initializes a dense net as a nearly linear model, like a wide-and-deep net (arXiv 1606.07792).

On few rows, a logistic regression learns the effects of single ids at once, while a net must first separate
them from all interactions. So two units of each top layer (+z and -z before ReLU) carry the mean of the first
columns of all vectors to the logit, and two units of the bottom MLP carry a sum of the dense values. The
other units start with little influence. The layers stay the same, training may change all these weights, and
serving needs no special case. It helps on few rows (hundreds are too few, and with many the net finds these
effects itself).

    column 0 of rows ---------------------------.
    dense values --> bottom (+z, -z as columns 0, 1) --> top (+z, -z) --> output (+p, -p)
"""

from __future__ import annotations

import torch
from torch import nn

from polyrec.models.dlrm.dlrm import DenseNet
from polyrec.models.dlrm.interaction import Cross, Dot

PASSED = 0.75
"""Weight of the mean of first columns in the logit. A sum instead would make the steps too large."""
OTHERS = 0.1
"""Factor applied to the output's other weights."""
DENSE = 0.3
"""Factor applied to the weights of the dense values."""


@torch.no_grad()
def start_linear(net: DenseNet) -> None:
    """Makes an untrained net nearly linear, in place.

    Leaves three kinds of nets unchanged: dot interactions, which have no vectors to add; nets without top
    layers, which are already linear in the vectors; and nets with a layer of a single unit, where +z and -z
    do not fit.
    """
    width, top = net.shape.width, _linear(net.top)
    if isinstance(net.interaction, Dot) or not top or min(width, *net.shape.top, *net.shape.bottom) < 2:
        return
    if net.bottom is not None:
        first, *others = _linear(net.bottom)
        first.weight[0] *= DENSE
        first.weight[1] = -first.weight[0]
        _pass_through(others)
    weight = top[0].weight
    weight[:2] = 0
    weight[0, ::width], weight[1, ::width] = 1, -1
    if net.bottom is not None:
        weight[0, 1], weight[1, 1] = -1, 1
    _pass_through(top[1:])
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


def _pass_through(layers: list[nn.Linear]) -> None:
    """Makes the first two units pass on the first two units of the previous layer."""
    for layer in layers:
        layer.weight[:2] = 0
        layer.weight[0, 0] = layer.weight[1, 1] = 1
