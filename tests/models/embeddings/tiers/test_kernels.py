"""The kernel gives what torch gives: on a GPU, or by Triton's interpreter in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from models.embeddings.store import open_rows, quantise
from models.embeddings.tiers.form import RowForm
from models.embeddings.tiers.kernels import PRECISIONS, available, pool, pooled
from models.precision import Precision


def random_case(
    precision: Precision, width: int, seed: int
) -> tuple[RowForm, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hot = quantise(torch.randn(40, width, generator=generator), precision)
    cold = quantise(torch.randn(30, width, generator=generator), precision)
    rows = torch.randint(-30, 40, (64,), generator=generator)
    ends = torch.randint(0, 65, (20,), generator=generator).sort().values
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), ends, torch.tensor([64])))
    return RowForm(width, precision), hot, cold, rows, offsets


def compare(device: str) -> None:
    for seed, (precision, width) in enumerate((p, w) for p in PRECISIONS for w in (16, 64, 100)):
        form, hot, cold, rows, offsets = random_case(precision, width, seed)
        if device == "cuda":
            cold = cold.pin_memory()
        here = (hot.to(device), cold, rows.to(device), offsets.to(device))
        torch.testing.assert_close(pool(form, *here).cpu(), pooled(form, hot, cold, rows, offsets))


@pytest.mark.parametrize("precision", [*PRECISIONS, "int4"])
def test_bags_of_both_memories_are_those_of_one_flat_store(precision: Precision) -> None:
    form, hot, cold, rows, offsets = random_case(precision, 16, 3)
    flat = open_rows(torch.cat((hot, cold)), precision)
    with torch.inference_mode():
        wanted = flat.pool(torch.where(rows < 0, 40 - 1 - rows, rows), offsets)
        torch.testing.assert_close(pooled(form, hot, cold, rows, offsets), wanted)


@pytest.mark.gpu
def test_the_kernel_on_a_gpu() -> None:
    compare("cuda")


def test_the_kernel_by_tritons_interpreter() -> None:
    if not available():
        pytest.skip("there is no triton on this machine")
    command = "from tests.models.embeddings.tiers.test_kernels import compare; compare('cpu')"
    done = subprocess.run(
        [sys.executable, "-c", command],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
