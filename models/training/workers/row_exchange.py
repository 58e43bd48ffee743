"""Exchanges embedding rows between training workers; rows are sharded, the hottest ones replicated.

Row r of the fused weight belongs to worker r mod W. Tables are in popularity order, so each worker owns as
many hot rows as any other. A batch takes three steps: ids go to their owners, rows come back, and after the
backward pass gradients go to the owners, which sum them and update. The exchange of hybrid-parallel DLRM
(Naumov et al., arXiv 1906.00091, section 4) sends every lookup; with `distinct`, each row travels once per
batch (RecD, MLSys'23, section 4). Replicated rows do not travel: all workers sum the gradients of a batch in
the same order and make the same update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from polyrec.models.schema.batch import I64, index_type
from polyrec.models.training.workers.group import WorkerGroup, split

Pairs = Sequence[tuple[Tensor, Tensor]]
"""Tensors of owned rows, each with that of their replicas."""


@dataclass(slots=True)
class Fetched:
    """The rows of a batch's lookups.

    values: [n, width], a leaf whose gradient `push` sends; fetched rows by owner, then replicated ones.
    position: int64 [lookups], index into `values`. cuts: number of fetched rows by owner.
    asked: own rows that other workers fetched; asked_cuts: their number by worker.
    slots: int64, replica slots of the replicated rows in `values`. local: whether nothing was exchanged.
    """

    values: Tensor
    position: I64
    cuts: list[int]
    asked: Tensor
    asked_cuts: list[int]
    slots: I64
    local: bool = False


class WorkerRows:
    """This worker's rows: its shard, and replicas of hot rows.

    weight: the whole fused weight [rows, width], from which the own rows are copied.
    hot: bool [rows], the rows replicated initially; None: none.
    distinct: whether equal lookups of a batch travel once.
    room: maximum number of replicated rows, if `replicate` will change them; 0: as many as initially.
    hot_rows: int64, the row of each replica; -1: none.
    use_hot: whether lookups use the replicas; while it is False, the owners' rows are current (`switch`).

    Replicas differ from their owners' rows only where steps changed them since they were last equal; only
    these rows are copied at a switch.
    """

    def __init__(
        self,
        group: WorkerGroup,
        weight: Tensor,
        hot: NDArray[np.bool_] | None = None,
        distinct: bool = True,
        max_hot_rows: int = 0,
    ) -> None:
        self.group, self.distinct = group, distinct
        self.total, self.width = weight.shape
        # ids are sent as the number of a row among its owner's rows
        self._id_type = index_type(-(-self.total // group.size))
        self.shard = nn.Parameter(weight[group.rank :: group.size].detach().clone())
        first = np.flatnonzero(hot) if hot is not None else np.zeros(0, np.int64)
        self.hot_rows = np.full(max(first.size, max_hot_rows), -1, np.int64)
        self.hot_rows[: first.size] = first
        self.use_hot = self.hot_rows.size > 0
        self._slot = np.full(self.total if self.hot_rows.size else 0, -1, np.int64)
        self._slot[first] = np.arange(first.size)
        # replicas that differ from their owners' rows; while the owners' rows are current, only of the own
        # rows
        self._changed = np.zeros(self.hot_rows.size, bool)
        # a slot without a row holds row 0's values, which are never read
        self.replicas = nn.Parameter(weight[torch.from_numpy(np.maximum(self.hot_rows, 0))].detach().clone())

    @property
    def device(self) -> torch.device:
        return self.shard.device

    def is_hot(self, rows: I64) -> NDArray[np.bool_]:
        """Returns which rows are replicated, bool, in the shape of `rows`."""
        if not self._slot.size:
            return np.zeros(rows.shape, bool)
        found: NDArray[np.bool_] = self._slot[rows] >= 0
        return found

    def fetch(self, rows: I64, local: bool = False) -> Fetched:
        """Fetches the values of rows, int64 [lookups]; every worker must call it.

        local: asserts that all rows are replicated on all workers, so nothing is exchanged.
        """
        wanted, place = rows, np.arange(rows.size)
        if self.distinct:
            wanted, place = np.unique(rows, return_inverse=True)
        replicated = self.is_hot(wanted) if self.use_hot else np.zeros(wanted.size, bool)
        # order of the values: by owner, then the replicated rows
        order = np.argsort(np.where(replicated, self.group.size, wanted % self.group.size), kind="stable")
        position = np.empty(wanted.size, np.int64)
        position[order] = np.arange(wanted.size)
        cold = int(wanted.size - replicated.sum())
        if local and cold:
            raise ValueError(f"{cold} of {rows.size} lookups of a hot batch are not of replicated rows")
        fetched, slots = wanted[order[:cold]], wanted[order[cold:]]
        slots = self._slot[slots] if slots.size else slots
        cuts = np.bincount(fetched % self.group.size, minlength=self.group.size).tolist()
        with torch.no_grad():
            values = self.replicas[:0]
            asked, asked_cuts = torch.zeros(0, dtype=torch.int64), [0] * self.group.size
            if not local:
                ids = torch.from_numpy((fetched // self.group.size).astype(self._id_type)).to(self.device)
                asked_cuts = self.group.counts(cuts, self.device)
                asked = self.group.exchange(split(ids, cuts), asked_cuts).long()
                values = self.group.exchange(split(self.shard.index_select(0, asked), asked_cuts), cuts)
            if slots.size:
                held = self.replicas.index_select(0, torch.from_numpy(slots).to(self.device))
                values = torch.cat((values, held))
        values = values.detach().requires_grad_(torch.is_grad_enabled())
        return Fetched(values, position[place], cuts, asked, asked_cuts, slots, local)

    @torch.no_grad()
    def push(self, parts: Sequence[Fetched]) -> None:
        """Sends the gradients of a step's fetched values to their owners; every worker must call it.

        parts: one per micro-batch, the same number on every worker. Sets the sparse gradients of `shard` and
        `replicas`.
        """
        received, asked, kept, slots = [], [], [], []
        for part in parts:
            gradient = part.values.grad
            gradient = torch.zeros_like(part.values) if gradient is None else gradient
            cold = sum(part.cuts)
            if not part.local:
                received.append(self.group.exchange(split(gradient[:cold], part.cuts), part.asked_cuts))
                asked.append(part.asked)
            kept.append(gradient[cold:])
            slots.append(torch.from_numpy(part.slots).to(self.device))
        if asked:
            rows = torch.cat(asked)
            self.shard.grad = _sparse(rows, torch.cat(received), self.shard)
            if self.hot_rows.size and not self.use_hot:
                changed = self._slot[rows.cpu().numpy() * self.group.size + self.group.rank]
                self._changed[changed[changed >= 0]] = True
        if self.use_hot:
            own = _sparse(torch.cat(slots), torch.cat(kept), self.replicas).coalesce()
            found = torch.cat(self.group.gather(_packed(own.indices()[0], own.values())))
            ids, gradients = _unpacked(found)
            self.replicas.grad = _sparse(ids, gradients, self.replicas)
            self._changed[ids.cpu().numpy()] = True

    def switch(self, hot: bool, pairs: Pairs) -> None:
        """Makes the replicas (hot) or the owners' rows current; every worker must call it.

        pairs: `shard` and `replicas`, and the same for each of their accumulators.
        """
        if self.use_hot == hot or not self.hot_rows.size:
            return
        if hot:
            own = self._slots_of(self.group.rank, np.flatnonzero(self._changed))
            sent = torch.from_numpy(own.astype(index_type(self.hot_rows.size))).to(self.device)
            changed = np.sort(torch.cat(self.group.gather(sent)).cpu().numpy().astype(np.int64))
            for pair in pairs:
                self._refresh(*pair, changed)
            self._changed[:] = False
        else:
            self.settle(pairs)
        self.use_hot = hot

    def settle(self, pairs: Pairs) -> None:
        """Copies current replicas to the owners' rows, without communication."""
        if self.use_hot:
            changed = np.flatnonzero(self._changed)
            for pair in pairs:
                self.publish(*pair, changed)
            self._changed[:] = False

    @torch.no_grad()
    def publish(self, own: Tensor, replicated: Tensor, slots: I64 | None = None) -> None:
        """Copies replicas to their owners' rows, `own` [own rows, ...], without communication.

        own, replicated: `shard` and `replicas`, or the optimizer's accumulators of both. slots: None for all.
        """
        mine = self._slots_of(self.group.rank, slots)
        own[torch.from_numpy(self.hot_rows[mine] // self.group.size)] = replicated[torch.from_numpy(mine)]

    @torch.no_grad()
    def _refresh(self, own: Tensor, replicated: Tensor, slots: I64) -> None:
        """Copies the owners' rows to the replicas in some slots, the same on every worker."""
        mine = self.hot_rows[self._slots_of(self.group.rank, slots)] // self.group.size
        found = self.group.gather(own[torch.from_numpy(mine)])
        for rank, values in enumerate(found):
            replicated[torch.from_numpy(self._slots_of(rank, slots))] = values

    def _slots_of(self, rank: int, slots: I64 | None) -> I64:
        """Returns which of some slots (None: all) hold rows of a worker, in order."""
        chosen = np.arange(self.hot_rows.size) if slots is None else slots
        rows = self.hot_rows[chosen]
        found: I64 = chosen[(rows >= 0) & (rows % self.group.size == rank)]
        return found

    def replicate(self, wanted: I64, pairs: Pairs) -> int:
        """Replicates other rows from now on; every worker must call it. Returns how many are new.

        wanted: int64, distinct, at most as many as replicas. pairs: see `switch`; accumulators move with the
        rows, so that results do not change.
        """
        self.settle(pairs)
        leave = np.flatnonzero(~np.isin(self.hot_rows, wanted))
        enter = wanted[self._slot[wanted] < 0]
        left = self.hot_rows[leave]
        self._slot[left[left >= 0]] = -1
        self.hot_rows[leave] = -1
        slots = leave[: enter.size]
        self.hot_rows[slots], self._slot[enter] = enter, slots
        if self.use_hot:
            for pair in pairs:
                self._refresh(*pair, slots)
        else:
            self._changed[slots] = True
        return int(enter.size)

    @torch.no_grad()
    def whole(self) -> Tensor:
        """Collects the fused weight [rows, width] from the owners; every worker must call it."""
        out = self.shard.new_empty((self.total, self.width))
        for rank, part in enumerate(self.group.gather(self.shard.detach())):
            out[rank :: self.group.size] = part
        return out


def _sparse(ids: Tensor, gradients: Tensor, parameter: nn.Parameter) -> Tensor:
    """Returns the sparse gradient for some rows of a parameter."""
    return torch.sparse_coo_tensor(ids.unsqueeze(0), gradients, parameter.shape, check_invariants=False)


def _packed(ids: Tensor, gradients: Tensor) -> Tensor:
    """Packs ids (as bits) and gradients into one tensor [n, 1 + width], to send one message instead of
    two.
    """
    bits = torch.int32 if gradients.element_size() == 4 else torch.int64
    return torch.cat((ids.to(bits).view(gradients.dtype).unsqueeze(1), gradients), dim=1)


def _unpacked(packed: Tensor) -> tuple[Tensor, Tensor]:
    bits = torch.int32 if packed.element_size() == 4 else torch.int64
    return packed[:, 0].contiguous().view(bits).long(), packed[:, 1:]
