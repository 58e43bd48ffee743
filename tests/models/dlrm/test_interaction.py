from __future__ import annotations

import numpy as np
import pytest
import torch

from polyrec.models.dlrm.interaction import Cat, Cross, Dot


@pytest.mark.parametrize("itself", [False, True])
@pytest.mark.parametrize("with_bottom", [False, True])
def test_dot_gives_the_pairs_in_dlrms_order(itself: bool, with_bottom: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 6, 4)
    out = Dot(6, with_bottom, itself)(x)
    for row in range(3):
        vectors = x[row].numpy()
        expected = list(vectors[0]) if with_bottom else []
        for i in range(6):
            for j in range(i + (1 if itself else 0)):
                expected.append(float(vectors[i] @ vectors[j]))
        np.testing.assert_allclose(out[row].numpy(), expected, rtol=1e-5, atol=1e-6)


def test_cat_puts_vectors_side_by_side() -> None:
    x = torch.arange(24.0).view(2, 4, 3)
    assert torch.equal(Cat()(x), x.view(2, 12))


def test_cross_follows_the_dcn_v2_equation() -> None:
    torch.manual_seed(0)
    cross = Cross(width=6, layers=2, rank=3)
    vectors = torch.randn(4, 2, 3)
    x0 = vectors.flatten(1).detach().numpy()
    x = x0
    for down, up in zip(cross.down, cross.up, strict=True):
        product = x @ down.weight.detach().numpy().T @ up.weight.detach().numpy().T
        x = x0 * (product + up.bias.detach().numpy()) + x
    np.testing.assert_allclose(cross(vectors).detach().numpy(), x, rtol=1e-5, atol=1e-6)
