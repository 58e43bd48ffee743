"""Maps the hash codes of ids to vectors (DHE's decoders), with one MLP per table.

The weights of all tables are stacked, so that a batch takes a few batched matrix products. Tables rarely need
the same number of vectors (a ranking request has one user and many items), and a single product would be
padded to the longest. So consecutive tables share a product only while the padding stays small: one product
for a balanced batch, a few for a ranking request. A vector must not depend on how many others are computed
with it, so the smallest products are padded as well in inference (models/dlrm/batch_invariance.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polyrec.models.dlrm.batch_invariance import affine, min_batch_rows
from polyrec.models.powers import next_power_of_two
from polyrec.models.schema.batch import I64
from polyrec.models.transfer import on_device

PADDING = 1.25
LAUNCHED_ROWS = 2**15
"""Padded rows that a GPU computes in one run, because a launch costs more than the padding."""
MOMENTUM = 0.1
EPSILON = 1e-5
MIN_HIDDEN = 16
"""Minimum hidden width in the decoder of a table with few rows."""

Activation = Literal["relu", "mish"]
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {"relu": F.relu, "mish": F.mish}
# E[f(z)^2] for a standard normal z: one half for ReLU, numerically integrated for Mish (checked in a test)
SECOND_MOMENT: dict[Activation, float] = {"relu": 0.5, "mish": 0.45234}


class Decoders(nn.Module):
    """MLPs of `tables` tables: k -> hidden widths (activation) -> width (linear).

    The papers' artifact ends in a sigmoid. A linear output trains better here and can represent any row
    (docs/representations.md).

    norms: adds a batch norm before each activation for training, as in DHE (KDD'21, section 5.1), with
    separate statistics per table over the distinct rows of a batch. `fold` merges it into the weights for
    serving.
    """

    def __init__(
        self,
        tables: int,
        k: int,
        hidden: Sequence[int],
        width: int,
        activation: Activation = "relu",
        norms: bool = False,
    ) -> None:
        super().__init__()
        self.sizes = (k, *hidden, width)
        self.width = width
        self.activation = activation
        self._second_moment = SECOND_MOMENT[activation]
        self.norms = nn.ModuleList(BatchNorm(tables, size) for size in (hidden if norms else ()))
        self.weights = nn.ParameterList(
            torch.empty(tables, fan_in, fan_out) for fan_in, fan_out in pairwise(self.sizes)
        )
        self.biases = nn.ParameterList(torch.zeros(tables, 1, fan_out) for fan_out in self.sizes[1:])
        self._min_rows = min_batch_rows((a * b for a, b in pairwise(self.sizes)), torch.float32)

    def initialize(
        self, generator: torch.Generator, spread: Sequence[float], code_variance: float = 1 / 3
    ) -> None:
        """Draws weights so that each layer's sums have deviation 1 and table t's vectors deviation
        `spread[t]`.

        He initialization (arXiv 1502.01852, section 2.2), generalized to any activation and variance of the
        codes.
        """
        moment = code_variance
        with torch.no_grad():
            for weight in self.weights:
                weight.normal_(0.0, 1 / math.sqrt(moment * weight.shape[1]), generator=generator)
                moment = self._second_moment
            self.weights[-1].mul_(torch.tensor(spread).view(-1, 1, 1))

    @torch.no_grad()
    def fold(self) -> None:
        """Merges the batch norms, by their running statistics, into weights and biases, and removes them."""
        for norm, weight, bias in zip(self.norms, self.weights, self.biases, strict=False):
            assert isinstance(norm, BatchNorm)
            scale, shift = norm.scale_and_shift()
            weight.mul_(scale)
            bias.mul_(scale).add_(shift)
        self.norms = nn.ModuleList()

    @property
    def flops(self) -> list[int]:
        """Floating-point operations per vector of each table, without hashing."""
        each = 2 * sum(fan_in * fan_out for fan_in, fan_out in pairwise(self.sizes))
        return [each] * self.weights[0].shape[0]

    def layers(self, table: int) -> list[tuple[Tensor, Tensor]]:
        """Returns the weights [inputs, outputs] and biases [outputs] of a table's layers, without norms."""
        return [(w[table], b[table, 0]) for w, b in zip(self.weights, self.biases, strict=True)]

    def forward(self, codes: Tensor, counts: I64) -> Tensor:
        """Returns vectors [n, width].

        codes: float32 [n, k], grouped by table; counts: int64 [tables], rows of each table.
        """
        ends = np.cumsum(counts)
        parts = []
        free = 0 if codes.device.type == "cpu" else LAUNCHED_ROWS
        for first, last in runs(counts, free):
            begin, end = int(ends[first] - counts[first]), int(ends[last - 1])
            if begin < end:
                parts.append(self._run(codes[begin:end], first, last, counts[first:last]))
        return torch.cat(parts) if parts else codes.new_empty((0, self.width))

    def _run(self, codes: Tensor, first: int, last: int, counts: I64) -> Tensor:
        tables, longest = last - first, int(counts.max())
        if not torch.is_grad_enabled():
            longest = max(longest, self._min_rows)
        even = bool((counts == longest).all())
        own = on_device(counts, codes.device) if self.norms else None
        if even:
            x = codes.view(tables, longest, -1)
        else:
            slots = np.arange(longest) < counts[:, None]
            x = codes.new_zeros((tables, longest, codes.shape[1]))
            filled = on_device(np.flatnonzero(slots), codes.device)
            x = x.view(tables * longest, -1).index_copy(0, filled, codes).view(tables, longest, -1)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if layer:
                x = ACTIVATIONS[self.activation](x)
            x = affine(bias[first:last], x, weight[first:last])
            if layer < len(self.norms):
                assert own is not None
                x = self.norms[layer](x, own, first, last)
        x = x.reshape(tables * longest, self.width)
        return x if even else x.index_select(0, filled)


class DecodersByRows(nn.Module):
    """MLPs like `Decoders`, but with hidden widths per table: a table of few ids needs no wide layer.

    hidden: hidden widths of each table. Tables share no product here. On a CPU that costs nothing, since ONNX
    Runtime executes the tables of `Decoders` one after the other as well.
    """

    def __init__(
        self,
        k: int,
        hidden: Sequence[Sequence[int]],
        width: int,
        activation: Activation = "relu",
        norms: bool = False,
    ) -> None:
        super().__init__()
        self.width = width
        self.activation = activation
        self.tables = nn.ModuleList(Decoders(1, k, own, width, activation, norms) for own in hidden)

    def initialize(
        self, generator: torch.Generator, spread: Sequence[float], code_variance: float = 1 / 3
    ) -> None:
        """Initializes each table's decoder as `Decoders.initialize` does."""
        for decoders, own in zip(self._decoders(), spread, strict=True):
            decoders.initialize(generator, [own], code_variance)

    @property
    def flops(self) -> list[int]:
        """Floating-point operations per vector of each table, without hashing."""
        return [decoders.flops[0] for decoders in self._decoders()]

    def layers(self, table: int) -> list[tuple[Tensor, Tensor]]:
        """Returns the weights [inputs, outputs] and biases [outputs] of a table's layers, without norms."""
        return self._decoders()[table].layers(0)

    def forward(self, codes: Tensor, counts: I64) -> Tensor:
        """Returns vectors [n, width]. codes, counts: see `Decoders.forward`."""
        own = zip(self._decoders(), torch.split(codes, counts.tolist()), strict=True)
        parts = [decoders(part, np.array([len(part)])) for decoders, part in own if len(part)]
        return torch.cat(parts) if parts else codes.new_empty((0, self.width))

    def _decoders(self) -> list[Decoders]:
        return [module for module in self.tables if isinstance(module, Decoders)]


def hidden_widths(hidden: Sequence[int], rows: int) -> tuple[int, ...]:
    """Limits hidden widths to a table's rows, rounded up to a power of two and at least MIN_HIDDEN.

    With as many units as there are distinct inputs, a layer can represent any function of them.
    """
    return tuple(min(size, max(MIN_HIDDEN, next_power_of_two(rows))) for size in hidden)


def keep_decoders(tensors: Mapping[str, Tensor], keep: Sequence[int]) -> dict[str, Tensor]:
    """Selects the decoders of some tables from a state dict of `Decoders` or `DecodersByRows`."""
    place = {table: i for i, table in enumerate(keep)}
    out = {}
    for name, tensor in tensors.items():
        if not name.startswith("tables."):
            out[name] = tensor[list(keep)]
            continue
        _, table, rest = name.split(".", 2)
        if int(table) in place:
            out[f"tables.{place[int(table)]}.{rest}"] = tensor
    return out


class BatchNorm(nn.Module):
    """Batch norms of `tables` tables with `size` channels each (Ioffe and Szegedy, arXiv 1502.03167).

    A table with fewer than two rows in a batch is normalized by its running statistics.
    """

    def __init__(self, tables: int, size: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(tables, 1, size))
        self.shift = nn.Parameter(torch.zeros(tables, 1, size))
        self.register_buffer("mean", torch.zeros(tables, 1, size))
        self.register_buffer("variance", torch.ones(tables, 1, size))

    def scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """Returns s and t [tables, 1, size]: by its running statistics, the norm maps x to x s + t."""
        scale = self.gain / (self.get_buffer("variance") + EPSILON).sqrt()
        return scale, self.shift - self.get_buffer("mean") * scale

    def forward(self, x: Tensor, counts: Tensor, first: int, last: int) -> Tensor:
        """Normalizes x [last - first, longest, size]; table t has counts[t] rows, followed by padding."""
        own = slice(first, last)
        # sum in the precision in which the statistics are stored, not in that of the products
        x = x.to(self.gain.dtype)
        if not self.training:
            scale, shift = self.scale_and_shift()
            return x * scale[own] + shift[own]
        present = (torch.arange(x.shape[1], device=x.device) < counts[:, None]).unsqueeze(2)
        rows = counts.clamp(min=1).view(-1, 1, 1)
        mean = (x * present).sum(1, keepdim=True) / rows
        variance = ((x - mean).square() * present).sum(1, keepdim=True) / rows
        enough = (counts > 1).view(-1, 1, 1)
        running_mean, running_variance = self.get_buffer("mean")[own], self.get_buffer("variance")[own]
        with torch.no_grad():
            rate = MOMENTUM * enough
            unbiased = variance * (rows / (rows - 1).clamp(min=1))
            new_mean = running_mean.lerp(mean, rate)
            new_variance = running_variance.lerp(unbiased, rate)
        mean = torch.where(enough, mean, running_mean)
        variance = torch.where(enough, variance, running_variance)
        out = (x - mean) * (self.gain[own] / (variance + EPSILON).sqrt()) + self.shift[own]
        with torch.no_grad():
            self.get_buffer("mean")[own] = new_mean
            self.get_buffer("variance")[own] = new_variance
        return out


def fold_norms(model: nn.Module) -> None:
    """Merges the batch norms of all decoders of a model into their weights."""
    for module in model.modules():
        if isinstance(module, Decoders):
            module.fold()


def running_statistics(model: nn.Module) -> list[Tensor]:
    """Returns the means and variances of all batch norms of a model's decoders."""
    return [b for module in model.modules() if isinstance(module, BatchNorm) for b in module.buffers()]


def runs(counts: I64, free: int = 0) -> list[tuple[int, int]]:
    """Splits tables into runs [first, last), each padded to its longest table.

    A run ends before its padded rows would exceed both `free` and `PADDING` times its actual rows.
    """
    out: list[tuple[int, int]] = []
    first, longest, total = 0, 0, 0
    for table, count in enumerate(counts.tolist()):
        padded = max(longest, count) * (table - first + 1)
        if table > first and padded > max(free, PADDING * (total + count)):
            out.append((first, table))
            first, longest, total = table, 0, 0
        longest, total = max(longest, count), total + count
    out.append((first, len(counts)))
    return out
