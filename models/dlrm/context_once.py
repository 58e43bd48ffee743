"""Computes the dense net with the context's part evaluated once per context instead of once per row.

The rows of a ranking request share their context, so everything that depends on the context alone is constant
within a request: the bottom MLP if all dense features are context features, products of context vectors with
one another, and the context's part of the first top layer. With J the inputs of that layer, C those of the
context, R = J - C the others, and W = [W_C W_R] its weight,

    W j + b  =  (W_C c + b)  +  W_R r        once per context, and once per row

which is exact algebra; only the order of additions differs from models/dlrm/dlrm.py.

    cat     c is the context's vectors, r the candidate's (and the bottom output, if any candidate
            feature is dense)
    dot     c is the pairs inside the context; r is the pairs with a candidate vector. Both are taken
            as whole blocks of products: products that are not pairs get weight zero
    cross   elementwise products mix all inputs after the first layer's `down` product, so only that
            product's context part is constant; the rest is computed per row

FLOP counts are in models/dlrm/cost.py, measurements in docs/context-once.md.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyrec.models.dlrm.batch_invariance import pad_layers, padded, tiled
from polyrec.models.dlrm.dlrm import DenseNet, Inputs
from polyrec.models.dlrm.interaction import Cross, Dot


class ContextPart(NamedTuple):
    """Precomputed values of a context for all its rows.

    hidden: [contexts, H], its part of the first top layer, bias included (for cross: of the first
    `down` product). vectors: [contexts, X, D], its vectors, for products with the candidates'.
    """

    hidden: Tensor
    vectors: Tensor


class ContextOnce(nn.Module):
    """The weights of a `DenseNet`, split into a part for contexts and a part for rows. Inference only.

    The buffers row_weight and context_weight are W_R and W_C of the module docstring.
    """

    def __init__(self, net: DenseNet) -> None:
        super().__init__()
        self.net = net
        self.bottom_per_context = net.bottom is not None and net.dense.candidate == 0
        self.bottom_per_row = net.bottom is not None and not self.bottom_per_context
        first = first_layer(net)
        weight = net.interaction.down[0].weight if isinstance(net.interaction, Cross) else first.weight
        assert isinstance(weight, Tensor)
        row_weight, context_weight = self._columns(weight.detach())
        self.register_buffer("row_weight", row_weight, persistent=False)
        self.register_buffer("context_weight", context_weight, persistent=False)
        bias = torch.zeros(weight.shape[0]) if isinstance(net.interaction, Cross) else first.bias.detach()
        self.register_buffer("bias", bias.to(weight), persistent=False)

    def _columns(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Splits the first layer's weight into (row columns, context columns), in order of computation."""
        net, width = self.net, self.net.shape.width
        has_bottom = net.bottom is not None
        vectors = torch.arange(has_bottom + sum(net.slots))
        context = torch.arange(has_bottom, has_bottom + net.slots.context)
        if self.bottom_per_context:
            context = torch.cat((torch.zeros(1, dtype=torch.int64), context))
        own = vectors[~torch.isin(vectors, context)]
        if not isinstance(net.interaction, Dot):
            spread = torch.arange(width)
            picked = [(v[:, None] * width + spread).flatten() for v in (own, context)]
            return weight[:, picked[0]].contiguous(), weight[:, picked[1]].contiguous()
        ahead = width if has_bottom else 0
        square = weight.new_zeros((weight.shape[0], vectors.numel() ** 2))
        square[:, net.interaction.get_buffer("pairs")] = weight[:, ahead:]
        square = square.view(-1, vectors.numel(), vectors.numel())
        # pairs are stored below the diagonal only; a (row, context) product may need the mirrored entry
        both = square + square.transpose(1, 2)
        crossing = both[:, own][:, :, context].flatten(1)
        inside = [square[:, v][:, :, v].flatten(1) for v in (own, context)]
        bottom = weight[:, :ahead]
        own_parts = [bottom, crossing, inside[0]] if self.bottom_per_row else [crossing, inside[0]]
        shared_parts = [bottom, inside[1]] if self.bottom_per_context else [inside[1]]
        return torch.cat(own_parts, dim=1).contiguous(), torch.cat(shared_parts, dim=1).contiguous()

    def pad_products(self) -> None:
        """Pads the inputs of every product to a multiple of TILE (models/dlrm/batch_invariance.py)."""
        pad_layers(self)
        for name in ("row_weight", "context_weight"):
            self.register_buffer(name, tiled(self.get_buffer(name)), persistent=False)

    def products(self) -> list[int]:
        """Returns the multiplications per row (or context) of each matrix product, of plain and ranking
        batches.
        """
        net = self.net
        found = [layer.weight.numel() for layer in net.modules() if isinstance(layer, nn.Linear)]
        found += [self.get_buffer(name).numel() for name in ("row_weight", "context_weight")]
        if isinstance(net.interaction, Dot):
            shared = net.slots.context + self.bottom_per_context
            own = net.slots.candidate + self.bottom_per_row
            pairs = ((shared + own) ** 2, shared**2, own * shared, own**2)
            found += [net.shape.width * n for n in pairs]
        return [n for n in found if n]

    def context(self, dense: Tensor, vectors: Tensor) -> ContextPart:
        """Computes the context part.

        dense: [contexts, dense features of the context]; vectors: [contexts, context slots, D].
        """
        x = vectors
        if self.bottom_per_context:
            assert self.net.bottom is not None
            x = torch.cat((self.net.bottom(dense).unsqueeze(1), vectors), dim=1)
        if isinstance(self.net.interaction, Dot):
            inputs = torch.bmm(x, x.transpose(1, 2)).flatten(1)
            if self.bottom_per_context:
                inputs = torch.cat((x[:, 0], inputs), dim=1)
        else:
            inputs = x.flatten(1)
        weight = self.get_buffer("context_weight")
        inputs = padded(inputs, weight.shape[1])
        return ContextPart(F.linear(inputs, weight, self.get_buffer("bias")), x)

    def candidate(self, context: ContextPart, inputs: Inputs) -> Tensor:
        """Computes logits [rows] given the context part.

        inputs.context_row is required, inputs.context unused.
        """
        net, row = self.net, inputs.context_row
        assert row is not None
        y = inputs.candidate
        if self.bottom_per_row:
            assert net.bottom is not None
            dense = torch.cat((inputs.dense_context.index_select(0, row), inputs.dense_candidate), dim=1)
            y = torch.cat((net.bottom(dense).unsqueeze(1), y), dim=1)
        constant = context.hidden.index_select(0, row)
        if isinstance(net.interaction, Dot):
            crossing = torch.bmm(y, context.vectors.index_select(0, row).transpose(1, 2)).flatten(1)
            parts = [crossing, torch.bmm(y, y.transpose(1, 2)).flatten(1)]
            own = torch.cat(([y[:, 0]] if self.bottom_per_row else []) + parts, dim=1)
        else:
            own = y.flatten(1)
        weight = self.get_buffer("row_weight")
        hidden = torch.addmm(constant, padded(own, weight.shape[1]), weight.t())
        if isinstance(net.interaction, Cross):
            x = context.vectors.index_select(0, row)
            if self.bottom_per_row:
                first = torch.cat((y[:, :1], x, y[:, 1:]), dim=1).flatten(1)
            else:
                first = torch.cat((x, y), dim=1).flatten(1)
            hidden = first_layer(net)(net.interaction.layers(first, hidden))
        if len(net.top):
            hidden = net.output(net.top[1:](hidden))
        return hidden.squeeze(1)

    def forward(self, inputs: Inputs) -> Tensor:
        if inputs.context_row is None:
            return self.net(inputs)  # type: ignore[no-any-return]
        return self.candidate(self.context(inputs.dense_context, inputs.context), inputs)


def first_layer(net: DenseNet) -> nn.Linear:
    """Returns the layer that reads the interaction's output."""
    layer = net.top[0] if len(net.top) else net.output
    assert isinstance(layer, nn.Linear)
    return layer
