"""Executes batches of any size in a few padded shapes, on a GPU as replayed CUDA graphs.

A dense net is a dozen small kernels; below a few hundred rows a GPU spends most of the time launching them. A
CUDA graph launches all of them at once, but only for the shapes with which it was captured. So rows are
padded to powers of two, and shared contexts to powers of eight or to the number of rows: 56 shapes, all
prepared in advance. Padding rows may have any values, because a dense net computes each row independently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from polyrec.models.dlrm.batch_invariance import round_up_to_block
from polyrec.models.dlrm.context_once import ContextOnce
from polyrec.models.dlrm.dlrm import Inputs
from polyrec.models.powers import next_power_of_two
from polyrec.models.schema.batch import F32
from polyrec.models.transfer import CAPTURING, pinned_for

LARGEST = 4096
"""Maximum padded rows; larger batches are computed unpadded, since launch costs are then negligible."""
CONTEXTS = (1, 8, 64, 512, LARGEST)
"""Padded numbers of contexts, where rows share them; at most as many as rows."""


def predict_unbucketed(
    net: ContextOnce, inputs: Inputs, device: torch.device, dtype: torch.dtype, min_rows: int = 0
) -> F32:
    """Computes probabilities of a batch, float32 [rows], without buckets. dtype: of the net's products.

    min_rows: minimum number of rows and of contexts to which a batch is padded with zeros, in whole blocks
    (models/dlrm/batch_invariance.py); 0: no padding.
    """
    rows = inputs.candidate.shape[0]
    dense_context, dense_candidate, context, candidate = (
        _pad_rows(x, min_rows).to(device, dtype) for x in inputs[:4]
    )
    row = None if inputs.context_row is None else _pad_rows(inputs.context_row, min_rows).to(device)
    out = _probabilities(net, Inputs(dense_context, dense_candidate, context, candidate, row))
    host: F32 = out[:rows].cpu().numpy()
    return host


def _pad_rows(x: Tensor, min_rows: int) -> Tensor:
    missing = round_up_to_block(max(x.shape[0], min_rows)) - x.shape[0] if min_rows else 0
    return torch.cat((x, x.new_zeros((missing, *x.shape[1:])))) if missing > 0 else x


def _probabilities(net: ContextOnce, inputs: Inputs) -> Tensor:
    logits: Tensor = net(inputs)
    return logits.float().sigmoid_()


@dataclass(frozen=True, slots=True)
class _Shape:
    """Buffers of one shape, and `replay`, which computes `out` from them. Padding rows hold stale values."""

    inputs: Inputs
    out: Tensor
    replay: Callable[[], object]


class Buckets:
    """Computes a dense net with buffers per shape. Used by one lane; not thread-safe.

    dtype: of the net's products. capture: uses CUDA graphs; False executes the net on the same buffers.
    """

    def __init__(self, net: ContextOnce, device: torch.device, dtype: torch.dtype, capture: bool) -> None:
        self._net, self._device, self._dtype, self._capture = net, device, dtype, capture
        self._shapes: dict[tuple[int | None, int], _Shape] = {}
        cuda: Any = torch.cuda
        # graphs of one lane never run concurrently, so they share memory for intermediate values
        self._pool = cuda.graph_pool_handle() if capture else None
        # torch's default capture stream belongs to the first device that captured
        self._aside = cuda.Stream(device) if capture else None

    @property
    def shapes(self) -> list[tuple[int | None, int]]:
        """The prepared shapes (contexts, rows); contexts is None if every row has its own."""
        return list(self._shapes)

    def prepare(self, largest: int = LARGEST) -> None:
        """Prepares all shapes up to `largest` rows, so that no request has to wait for it."""
        slots, dense = self._net.net.slots, self._net.net.dense
        width = self._net.net.shape.width
        rows = 1
        while rows <= largest:
            shared = {min(n, rows) for n in CONTEXTS} if slots.context else ()
            for contexts in (None, *shared):
                every = rows if contexts is None else contexts
                row = None if contexts is None else torch.zeros(rows, dtype=torch.int64)
                vectors = torch.zeros(every, slots.context, width), torch.zeros(rows, slots.candidate, width)
                given = torch.zeros(every, dense.context), torch.zeros(rows, dense.candidate)
                self(Inputs(*given, *vectors, row))
            rows *= 2

    def __call__(self, inputs: Inputs) -> F32:
        """Computes a batch; returns a new float32 [rows]. Waits for the device only to copy the result."""
        if self._device.type != "cuda":
            return self._predict(inputs)
        with torch.cuda.device(self._device):
            return self._predict(inputs)

    def _predict(self, inputs: Inputs) -> F32:
        rows = inputs.candidate.shape[0]
        if not 0 < rows <= LARGEST:
            return predict_unbucketed(self._net, inputs, self._device, self._dtype)
        shape = self._shape(inputs, rows)
        for memory, given in zip(shape.inputs, inputs, strict=True):
            if memory is not None and given is not None:
                # copies from pageable memory would block
                there = given if given.device == memory.device else pinned_for(given, self._device)
                memory[: given.shape[0]].copy_(there, non_blocking=True)
        shape.replay()
        host: F32 = shape.out[:rows].to("cpu", copy=True).numpy()
        return host

    def _shape(self, inputs: Inputs, rows: int) -> _Shape:
        bucket = next_power_of_two(rows)
        shared = inputs.context_row is not None
        key = _contexts_bucket(inputs.context.shape[0], bucket) if shared else None, bucket
        if key not in self._shapes:
            self._shapes[key] = self._make_shape(inputs, *key)
        return self._shapes[key]

    def _make_shape(self, inputs: Inputs, contexts: int | None, rows: int) -> _Shape:
        every = rows if contexts is None else contexts
        counts = (every, rows, every, rows)
        dense_context, dense_candidate, context, candidate = (
            torch.zeros((n, *given.shape[1:]), dtype=self._dtype, device=self._device)
            for n, given in zip(counts, inputs[:4], strict=True)
        )
        row = None if contexts is None else torch.zeros(rows, dtype=torch.int64, device=self._device)
        memory = Inputs(dense_context, dense_candidate, context, candidate, row)
        if not self._capture:
            out = torch.empty(rows, device=self._device)
            return _Shape(memory, out, lambda: out.copy_(_probabilities(self._net, memory)))
        cuda: Any = torch.cuda
        ours, aside = cuda.current_stream(self._device), self._aside
        assert aside is not None
        aside.wait_stream(ours)
        with CAPTURING:
            with cuda.stream(aside):
                # libraries select kernels and allocate on first use, which cannot be captured
                for _ in range(2):
                    _probabilities(self._net, memory)
            graph = cuda.CUDAGraph()
            with cuda.graph(graph, pool=self._pool, stream=aside, capture_error_mode="thread_local"):
                out = _probabilities(self._net, memory)
        ours.wait_stream(aside)
        return _Shape(memory, out, graph.replay)


def _contexts_bucket(contexts: int, rows: int) -> int:
    """Returns the number of contexts to pad to: one of CONTEXTS, at most `rows`.

    rows: rows of the bucket, a power of two; a batch has no more contexts than rows.
    """
    bucket = next((n for n in CONTEXTS if n >= contexts), contexts)
    return max(contexts, min(bucket, rows))
