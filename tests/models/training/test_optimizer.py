from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from polyrec.models.training.optimizer import ColumnBlock, RowWiseAdagrad, summed_by_row


def test_updates_equal_row_wise_adagrad_written_out() -> None:
    random = np.random.default_rng(0)
    weight = random.standard_normal((6, 3)).astype(np.float32)
    parameter = nn.Parameter(torch.from_numpy(weight.copy()))
    optimizer = RowWiseAdagrad([parameter], lr=0.1, eps=1e-8, decay=0.01)
    squares = np.zeros(6)
    for _ in range(3):
        index = random.integers(0, 6, 5)
        upstream = random.standard_normal((5, 3)).astype(np.float32)
        out = F.embedding(torch.from_numpy(index), parameter, sparse=True)
        (out * torch.from_numpy(upstream)).sum().backward()
        optimizer.step(scale=0.5)
        for row in np.unique(index):
            gradient = upstream[index == row].sum(axis=0)
            squares[row] += np.mean(gradient**2)
            decay = 0.1 * 0.5 * 0.01 * weight[row]
            weight[row] = weight[row] - 0.1 * 0.5 * gradient / (np.sqrt(squares[row]) + 1e-8) - decay
        assert parameter.grad is None
    np.testing.assert_allclose(parameter.detach().numpy(), weight, rtol=1e-5, atol=1e-6)


def test_a_column_block_is_a_table_of_its_own() -> None:
    random = np.random.default_rng(0)
    weight = torch.from_numpy(random.standard_normal((6, 5)).astype(np.float32))
    whole = nn.Parameter(weight.clone())
    blocks = [ColumnBlock(0, 2), ColumnBlock(2, 5, lr=0.3)]
    optimizer = RowWiseAdagrad([whole], lr=0.1, decay=0.01, blocks=blocks)
    apart = [nn.Parameter(weight[:, b.first : b.last].clone()) for b in blocks]
    # decay is relative to the optimizer's step size, not the block's
    alone = [
        RowWiseAdagrad([p], lr=0.1 * b.lr, decay=0.01 / b.lr) for p, b in zip(apart, blocks, strict=True)
    ]
    for _ in range(3):
        index = torch.from_numpy(random.integers(0, 6, 5))
        upstream = torch.from_numpy(random.standard_normal((5, 5)).astype(np.float32))
        (F.embedding(index, whole, sparse=True) * upstream).sum().backward()
        optimizer.step(scale=0.5)
        for part, block, own in zip(apart, blocks, alone, strict=True):
            out = F.embedding(index, part, sparse=True) * upstream[:, block.first : block.last]
            out.sum().backward()
            own.step(scale=0.5)
    np.testing.assert_allclose(
        whole.detach().numpy(), torch.cat([p.detach() for p in apart], 1).numpy(), rtol=1e-5, atol=1e-6
    )


def test_sums_of_a_row_do_not_depend_on_its_number() -> None:
    random = np.random.default_rng(0)
    rows = torch.from_numpy((random.random(3000) ** 3 * 500).astype(np.int64))
    values = torch.from_numpy(random.standard_normal((3000, 4)).astype(np.float32))
    moved = torch.from_numpy(random.permutation(500))
    found = {}
    for name, index in (("here", rows), ("moved", moved[rows])):
        distinct, sums = summed_by_row(
            torch.sparse_coo_tensor(index[None], values, (500, 4), check_invariants=True)
        )
        assert (distinct.diff() > 0).all()
        found[name] = torch.zeros(500, 4)
        found[name][distinct] = sums
    assert torch.equal(found["here"], found["moved"][moved])
    np.testing.assert_allclose(
        found["here"].numpy(), torch.zeros(500, 4).index_add_(0, rows, values).numpy(), rtol=1e-4, atol=1e-5
    )
