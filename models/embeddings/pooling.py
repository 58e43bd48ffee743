"""Assembles the vectors of a batch from a source of rows: gathers single values and pools bags."""

from __future__ import annotations

import torch
from torch import Tensor

from polyrec.models.embeddings.lookups import Bags, Lookups
from polyrec.models.embeddings.stage import Vectors
from polyrec.models.embeddings.store import Source, as_index, pool_gathered
from polyrec.models.tiers.rows import HOST, TieredRows
from polyrec.models.transfer import on_device


def assemble(lookups: Lookups, source: Source, width: int, device: torch.device) -> Vectors:
    """Returns the vectors of a batch, with one gather for single values and one bag operation per block.

    Bags are pooled first, because a source may reuse one buffer for all its gathers, and the singles stay in
    it. With gradients, a single gather also takes the rows of the bags, since torch would add the gradients
    of several gathers in an order that depends on the row numbers.
    """
    if isinstance(source, TieredRows) and source.fused is not None:
        return source.vectors(lookups)
    blocks = (lookups.context, lookups.candidate)
    # tiers locate rows on the host, whichever device they return them on
    index_device = HOST if isinstance(source, TieredRows) else device
    bags = [b.bags for b in blocks]
    if torch.is_grad_enabled():
        everything = source.gather(as_index(lookups.in_order(), index_device))
        sizes = [*(0 if b is None else b.rows.size for b in bags), lookups.singles.size]
        *parts, gathered = everything.split(sizes)  # type: ignore[no-untyped-call]
        pooled = [
            None if b is None else _scaled(b, pool_gathered(part, as_index(b.offsets, device)), device)
            for b, part in zip(bags, parts, strict=True)
        ]
    else:
        pooled = [None if b is None else _pool(b, source, index_device, device) for b in bags]
        gathered = source.gather(as_index(lookups.singles, index_device))
    out = []
    start = 0
    for block, sums in zip(blocks, pooled, strict=True):
        rows, slots = block.singles.shape
        singles = gathered[start : start + rows * slots].view(rows, slots, width)
        start += rows * slots
        if block.bags is None or sums is None:
            out.append(singles)
        else:
            vectors = sums.view(rows, block.bags.features, width)
            out.append(torch.cat((singles, vectors), dim=1) if slots else vectors)
    return Vectors(out[0], out[1])


def _pool(bags: Bags, source: Source, index_device: torch.device, device: torch.device) -> Tensor:
    """Pools bags to [block rows * features, width], scaled where the pooling is a mean."""
    sums = source.pool(as_index(bags.rows, index_device), as_index(bags.offsets, index_device))
    return _scaled(bags, sums, device)


def _scaled(bags: Bags, sums: Tensor, device: torch.device) -> Tensor:
    """Turns sums into means where the pooling is a mean."""
    return sums if bags.scale is None else sums * on_device(bags.scale, device).view(-1, 1)
