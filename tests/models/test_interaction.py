from __future__ import annotations

import numpy as np
import pytest
import torch

from models.interaction import Cat, Cross, Dot


@pytest.mark.parametrize("itself", [False, True])
@pytest.mark.parametrize("with_bottom", [False, True])
def test_dot_gives_the_pairs_in_dlrms_order(itself: bool, with_bottom: bool) -> None:
    torch.manual_seed(0)
    bottom, vectors = torch.randn(3, 4), torch.randn(3, 5, 4)
    everything = torch.cat((bottom.unsqueeze(1), vectors), 1) if with_bottom else vectors
    out = Dot(everything.shape[1], itself)(bottom if with_bottom else None, vectors)
    for row in range(3):
        x = everything[row].numpy()
        expected = list(bottom[row].numpy()) if with_bottom else []
        for i in range(len(x)):
            for j in range(i + (1 if itself else 0)):
                expected.append(float(x[i] @ x[j]))
        np.testing.assert_allclose(out[row].numpy(), expected, rtol=1e-5, atol=1e-6)


def test_cat_puts_bottom_first() -> None:
    bottom, vectors = torch.ones(2, 3), torch.zeros(2, 4, 3)
    out = Cat()(bottom, vectors)
    assert out.shape == (2, 15)
    assert out[:, :3].eq(1).all()
    assert Cat()(None, vectors).shape == (2, 12)


def test_cross_follows_the_dcn_v2_equation() -> None:
    torch.manual_seed(0)
    cross = Cross(width=6, layers=2, rank=3)
    vectors = torch.randn(4, 2, 3)
    x0 = vectors.flatten(1).detach().numpy()
    x = x0
    for down, up in zip(cross.down, cross.up, strict=True):
        product = x @ down.weight.detach().numpy().T @ up.weight.detach().numpy().T
        x = x0 * (product + up.bias.detach().numpy()) + x
    np.testing.assert_allclose(cross(None, vectors).detach().numpy(), x, rtol=1e-5, atol=1e-6)
