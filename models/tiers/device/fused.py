"""Gathers and pools all lookups of a batch in one pass on the device.

Single values and bags of contexts and candidates become one list of bags in slot order, and a kernel gathers,
dequantizes and pools all of them into the interaction's input. Rows of the device tier are read in place.
Misses use one of two transfer modes (transfer_costs.py):

    direct    the kernel reads them from the slab in pinned host memory
    copied    bags without a miss are summed first; meanwhile the host gathers misses into pinned memory and
              copies them on a separate stream, then the other bags are summed from both (Hotline)

Nothing here waits for the device. On the CPU, torch runs the same steps in the same order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyrec.models.embeddings.lookups import Lookups
from polyrec.models.embeddings.stage import Vectors
from polyrec.models.powers import next_power_of_two
from polyrec.models.schema.batch import I64
from polyrec.models.tiers.device.device_plan import DevicePlan, can_plan
from polyrec.models.tiers.device.kernels import PRECISIONS, available, sums
from polyrec.models.tiers.device.lookup_bags import LookupBags, bags_in_slot_order
from polyrec.models.tiers.device.transfer_costs import COPIED, DIRECT, TransferCosts
from polyrec.models.tiers.layout import DEVICE, HOST, RowLocations
from polyrec.models.tiers.stack import TierStack
from polyrec.models.tiers.view import View
from polyrec.models.transfer import on_device

PLANNED = 4096
"""Minimum lookups for which locating rows on the device is faster than on the host."""

clock = time.perf_counter


def can_fuse(stack: TierStack) -> bool:
    """Returns whether lookups can be fused: rows on a GPU, in a precision that the kernel reads."""
    return stack.device.type == "cuda" and available() and stack.tiers.row_format.precision in PRECISIONS


class FusedLookups:
    """Runs one lane's lookups through a stack with a device tier. Its vectors are valid until the next
    batch.

    mode: forces one transfer mode, for measurements.
    planned: minimum number of lookups from which the device locates the rows, if it can.
    batches_by_transfer: number of batches by mode; batches without a miss count as direct.
    """

    def __init__(self, stack: TierStack, mode: int | None = None, planned: int = PLANNED) -> None:
        if stack.tiers.device is None:
            raise ValueError("these tiers have no rows on a device")
        self.stack = stack
        self.mode = mode
        self.transfer_costs = TransferCosts()
        self.batches_by_transfer = [0, 0]
        self._hot = stack.tiers.device
        self._cuda = self._hot.is_cuda
        with self._device_context():
            self._reaches_host = stack.tiers.slab.pin() if self._cuda else True
        self._out = torch.empty((0, stack.tiers.row_format.width), device=self._hot.device)
        cuda: Any = torch.cuda
        self._copying = cuda.Stream(self._hot.device) if self._cuda else None
        self._timing: deque[_PendingBatch] = deque()
        self._plan: DevicePlan | None = None
        self._planned = planned
        self._near = stack.tiers.layout.tier == DEVICE
        self._miss_rate: float | None = None
        self._chosen: int | None = None
        if self._reaches_host and can_plan(stack.tiers.layout):
            self._plan = DevicePlan(stack.tiers.layout, stack.tiers.slab, self._hot.device)
        if can_fuse(stack):
            with self._device_context():
                self._compile()

    def _compile(self) -> None:
        """Compiles every variant of the kernel, so that no request waits for the compiler."""
        row_format, hot, slab = self.stack.tiers.row_format, self._hot, self.stack.tiers.slab.view
        none, bags = np.zeros(2, np.int64), np.arange(2)
        out = torch.empty((2, row_format.width), device=hot.device)
        for offsets, scale in ((None, None), (np.arange(3), None), (np.arange(3), np.ones(2, np.float32))):
            there = self._to_device(LookupBags(none, offsets, scale, ((0, 0), (1, 2))), none, bags)
            self._sum(there, hot, there.which[0], out)
            if self._reaches_host:
                self._sum(there, slab, None, out)

    def vectors(self, view: View, lookups: Lookups) -> tuple[Vectors, int]:
        """Returns a batch's vectors on the device, and the number of lookups replaced by out-of-vocabulary
        rows.

        Raises OSError if a page of the disk tier cannot be read.
        """
        slots = bags_in_slot_order(lookups)
        with self._device_context():
            return self._vectors(view, slots)

    def _device_context(self) -> AbstractContextManager[Any]:
        """Makes the rows' device current for kernels, events and streams."""
        cuda: Any = torch.cuda
        context: AbstractContextManager[Any] = cuda.device_of(self._hot)
        return context

    def _vectors(self, view: View, slots: LookupBags) -> tuple[Vectors, int]:
        row_format = self.stack.tiers.row_format
        if self._out.shape[0] < slots.bags:
            shape = next_power_of_two(slots.bags), row_format.width
            self._out = torch.empty(shape, device=self._hot.device)
        out = self._out[: slots.bags]

        if self._locates_on_device(view, slots):
            self.stack.pool_placed_on_device(view, slots.rows, lambda: self._in_place(slots, out))
            return self._split(slots, out), 0

        def read(where: RowLocations, changed: I64, below: Callable[[I64, Tensor], I64]) -> I64:
            return self._read(slots, out, where, changed, below)

        lost = self.stack.pool(view, slots.rows, read)
        return self._split(slots, out), lost

    def _split(self, slots: LookupBags, out: Tensor) -> Vectors:
        (contexts, own), (rows, other) = slots.shapes
        split, width = contexts * own, out.shape[1]
        return Vectors(out[:split].view(contexts, own, width), out[split:].view(rows, other, width))

    def _locates_on_device(self, view: View, slots: LookupBags) -> bool:
        """Returns whether the device should locate the rows; misses are then read in place."""
        self._chosen = None
        count = slots.rows.size
        if self._plan is None or view.layers or count < max(self._planned, 1):
            return False
        self.learn()
        if self.mode is not None:
            return self.mode == DIRECT
        # the number of misses is not known in advance, so use the latest miss rate
        if self._miss_rate is not None:
            self._chosen = self.transfer_costs.choose(count, round(self._miss_rate * count))
        return self._chosen == DIRECT

    def _in_place(self, slots: LookupBags, out: Tensor) -> None:
        assert self._plan is not None
        begun = self._mark()
        there = self._to_device(slots, slots.rows)
        codes, counts = self._plan.codes(there.rows)
        self._sum(replace(there, rows=codes), self.stack.tiers.slab.view, None, out)
        counts_copy = torch.empty(counts.shape, dtype=torch.int64, pin_memory=self._cuda)
        counts_copy.copy_(counts, non_blocking=True)
        self.batches_by_transfer[DIRECT] += 1
        self._timing.append(_PendingBatch(DIRECT, slots.rows.size, counts_copy, begun, self._mark()))

    def _read(
        self,
        slots: LookupBags,
        out: Tensor,
        where: RowLocations,
        changed: I64,
        below: Callable[[I64, Tensor], I64],
    ) -> I64:
        """Fills `out`; returns the lookups that no tier answered. changed: lookups of updated rows."""
        self.learn()
        cold = where.tier != DEVICE
        cold[changed] = True
        misses = np.flatnonzero(cold)
        mode = self._choose_mode(where, misses, changed)
        self.batches_by_transfer[mode] += 1
        begun = self._mark()
        if mode == DIRECT:
            slab = self.stack.tiers.slab
            codes = np.where(cold, -1 - slab.row_addresses(where.local), where.local)
            self._sum(self._to_device(slots, codes), slab.view, None, out)
            lost = misses[:0]
        else:
            lost = self._copied(slots, out, where, misses, below)
        self._timing.append(_PendingBatch(mode, slots.rows.size, misses.size, begun, self._mark()))
        return lost

    def _choose_mode(self, where: RowLocations, misses: I64, changed: I64) -> int:
        if not misses.size:
            return DIRECT
        # only host rows can be read in place: cached pages may be evicted, and updates are in no tier yet
        if changed.size or not self._reaches_host or (where.tier[misses] != HOST).any():
            return COPIED
        # choose once per batch: a second choice would cancel the retry of the slower mode
        known = self._chosen if self.mode is None else self.mode
        return self.transfer_costs.choose(where.tier.size, misses.size) if known is None else known

    def _copied(
        self,
        slots: LookupBags,
        out: Tensor,
        where: RowLocations,
        misses: I64,
        below: Callable[[I64, Tensor], I64],
    ) -> I64:
        row_format = self.stack.tiers.row_format
        codes = where.local.copy()
        codes[misses] = -1 - np.arange(misses.size)
        touched = slots.having(misses)
        popular, rest = np.flatnonzero(~touched), np.flatnonzero(touched)
        there = self._to_device(slots, codes, popular, rest)
        self._sum(there, self._hot, there.which[0], out)
        staged = torch.empty((misses.size, row_format.units), dtype=row_format.unit, pin_memory=self._cuda)
        lost = below(misses, staged)
        if self._copying is not None:
            ours = torch.cuda.current_stream(self._hot.device)
            with torch.cuda.stream(self._copying):
                copied = staged.to(self._hot.device, non_blocking=True)
            ours.wait_stream(self._copying)
            copied.record_stream(ours)
        else:
            copied = staged
        self._sum(there, copied, there.which[1], out)
        return misses[lost]

    def _sum(self, there: _DeviceArrays, cold: Tensor, which: Tensor | None, out: Tensor) -> None:
        if which is None or which.numel():
            row_format = self.stack.tiers.row_format
            sums(row_format, self._hot, cold, there.rows, there.offsets, there.scale, which, out)

    def _to_device(self, slots: LookupBags, codes: I64, *which: I64) -> _DeviceArrays:
        """Copies the kernel's index arrays to the device, in one transfer from pinned memory."""
        parts = [codes, *([] if slots.offsets is None else [slots.offsets]), *which]
        device = self._hot.device
        scale = None if slots.scale is None else on_device(slots.scale, device)
        if self._cuda:
            # parts are aligned to 16 bytes, because Triton specializes kernels on alignment
            starts = np.cumsum([0, *(p.size + p.size % 2 for p in parts)]).tolist()
            packed = torch.empty(starts[-1], dtype=torch.int64, pin_memory=True)
            for start, part in zip(starts, parts, strict=False):
                packed.numpy()[start : start + part.size] = part
            there = packed.to(device, non_blocking=True)
            tensors = [there[start : start + part.size] for start, part in zip(starts, parts, strict=False)]
        else:
            tensors = [torch.from_numpy(p) for p in parts]
        offsets = None if slots.offsets is None else tensors[1]
        return _DeviceArrays(tensors[0], offsets, scale, tuple(tensors[1 if offsets is None else 2 :]))

    def _mark(self) -> Any:
        """Records the current time on the device: a CUDA event, or a clock reading on the CPU."""
        if not self._cuda:
            return clock()
        cuda: Any = torch.cuda
        event = cuda.Event(enable_timing=True)
        event.record()
        return event

    def learn(self) -> None:
        """Records the times of finished batches, without waiting for others."""
        while self._timing:
            batch = self._timing[0]
            if self._cuda:
                if not batch.ended.query():
                    return
                seconds = batch.begun.elapsed_time(batch.ended) * 1e-3
            else:
                seconds = batch.ended - batch.begun
            self._timing.popleft()
            misses = batch.misses
            if isinstance(misses, Tensor):
                counts: I64 = misses.numpy()
                self.stack.count(counts)
                misses = int(counts[~self._near].sum())
            if batch.lookups:
                self._miss_rate = misses / batch.lookups
            if misses:
                self.transfer_costs.record(batch.mode, batch.lookups, misses, seconds)


@dataclass(frozen=True, slots=True)
class _PendingBatch:
    """A batch in progress.

    misses: number of misses, or a tensor that receives the number of lookups per range.
    """

    mode: int
    lookups: int
    misses: int | Tensor
    begun: Any
    ended: Any


@dataclass(frozen=True, slots=True)
class _DeviceArrays:
    rows: Tensor
    offsets: Tensor | None
    scale: Tensor | None
    which: tuple[Tensor, ...]
