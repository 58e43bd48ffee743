"""From a source of rows to the vectors of a batch: gather the singles, pool the bags."""

from __future__ import annotations

import torch
from torch import Tensor

from models.embeddings.lookups import Bags, Lookups
from models.embeddings.stage import Vectors
from models.embeddings.store import Source, as_index


def assemble(lookups: Lookups, source: Source, width: int, device: torch.device) -> Vectors:
    """The vectors of a batch: one gather for all single-valued features, one bag a role.

    Bags come first: a source may keep one buffer for all its gathers, and the singles stay in it.
    """
    rows, slots = lookups.singles.shape
    pooled = []
    if lookups.context_bags is not None:
        context = _pool(lookups.context_bags, source, width, device)
        if lookups.context_row is not None:
            context = context.index_select(0, as_index(lookups.context_row, device))
        pooled.append(context)
    if lookups.candidate_bags is not None:
        pooled.append(_pool(lookups.candidate_bags, source, width, device))
    index = as_index(lookups.singles.reshape(-1), device)
    singles = source.gather(index).view(rows, slots, width)
    if not pooled:
        return Vectors(singles, singles.new_empty((rows, 0, width)))
    return Vectors(singles, pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=1))


def _pool(bags: Bags, source: Source, width: int, device: torch.device) -> Tensor:
    """[block rows, features, width]: sums, scaled where the pooling is a mean."""
    pooled = source.pool(as_index(bags.rows, device), as_index(bags.offsets, device))
    scale = torch.from_numpy(bags.scale).to(device)
    return pooled.view(*scale.shape, width) * scale.unsqueeze(-1)
