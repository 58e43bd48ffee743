"""Connects the worker processes of a training with collective calls.

Workers are started by torchrun or by `polyrec train --workers N`; both set RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT. Every worker must call the same methods in the same order. Bytes are counted as sent to other
workers, without the transport's headers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from polyrec.models.errors import DataError

T = TypeVar("T")

ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that identify a worker and its group, as torchrun sets them."""


class WorkerGroup:
    """The workers of a training. Use it in a `with` block, or `close` it.

    rank: this worker, from 0. size: number of workers. sent_bytes: bytes sent to other workers so far.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.sent_bytes = 0

    @classmethod
    def join(cls, device: str = "cpu") -> WorkerGroup:
        """Joins the group described by the environment; nccl on a GPU, else gloo. Raises DataError."""
        missing = [name for name in ENVIRONMENT if name not in os.environ]
        if missing:
            raise DataError(f"several workers: {', '.join(missing)} not set; start them with torchrun")
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
        return cls(dist.get_rank(), dist.get_world_size())

    def close(self) -> None:
        """Leaves the group."""
        dist.destroy_process_group()

    def __enter__(self) -> WorkerGroup:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def exchange(self, parts: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
        """Sends `parts[i]` to worker i; returns what this worker received, in order of rank (all-to-all).

        parts: [n_i, ...] with equal trailing shape and dtype. sizes: number of rows from each worker.
        """
        own = torch.cat(list(parts))
        out = own.new_empty((sum(sizes), *own.shape[1:]))
        lengths = [part.shape[0] for part in parts]
        row_bytes = own[0].numel() * own.element_size() if own.shape[0] else 0
        sent = (own.shape[0] - lengths[self.rank]) * row_bytes
        self._run(lambda: dist.all_to_all_single(out, own, list(sizes), lengths), sent)
        return out

    def counts(self, own: Sequence[int], device: torch.device) -> list[int]:
        """Sends the number `own[i]` to worker i; returns the numbers that this worker received."""
        sent = torch.tensor(own, dtype=torch.int64, device=device)
        found = torch.empty_like(sent)
        wire = 8 * (self.size - 1)
        self._run(lambda: dist.all_to_all_single(found, sent), wire)
        return [int(n) for n in found.tolist()]

    def sum(self, tensor: Tensor) -> None:
        """Adds up the tensors of all workers, in place; all get bitwise the same sum."""
        # in a ring, every worker sends all parts but one twice: once to be added, once as a sum
        wire = 2 * (self.size - 1) * tensor.nbytes // self.size
        self._run(lambda: dist.all_reduce(tensor), wire)

    def gather(self, own: Tensor) -> list[Tensor]:
        """Returns the tensors of all workers, in order of rank; their first dimension may differ."""
        sizes = self.counts([own.shape[0]] * self.size, own.device)
        received = self.exchange([own] * self.size, sizes)
        return split(received, sizes)

    def _run(self, call: Callable[[], T], sent: int) -> T:
        """Makes a collective call. sent: bytes that leave this worker."""
        self.sent_bytes += sent
        return call()


def split(tensor: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Splits a tensor into consecutive parts of the given sizes."""
    return list(tensor.split(list(sizes)))  # type: ignore[no-untyped-call]
