"""The kernel gives what torch gives: on a GPU, or by Triton's interpreter in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from polyrec.models.dlrm.precision import Precision
from polyrec.models.embeddings.store import open_rows, quantize
from polyrec.models.tiers.device.kernels import PRECISIONS, available, pool, pooled
from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.slab import Slab


class Case(NamedTuple):
    row_format: RowFormat
    hot: torch.Tensor
    cold: torch.Tensor
    rows: torch.Tensor
    offsets: torch.Tensor
    scale: torch.Tensor
    which: torch.Tensor


def random_case(precision: Precision, width: int, seed: int) -> Case:
    generator = torch.Generator().manual_seed(seed)
    hot = quantize(torch.randn(40, width, generator=generator), precision)
    cold = quantize(torch.randn(30, width, generator=generator), precision)
    rows = torch.randint(-30, 40, (64,), generator=generator)
    ends = torch.randint(0, 65, (20,), generator=generator).sort().values
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), ends, torch.tensor([64])))
    scale = torch.rand(21, generator=generator)
    which = torch.nonzero(torch.rand(21, generator=generator) < 0.5).squeeze(1)
    return Case(RowFormat(width, precision), hot, cold, rows, offsets, scale, which)


def grained(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """The cold rows in a slab, as its view of overlapping rows, and the lookups in its addresses."""
    slab = Slab(case.row_format, case.cold.shape[0], 1, 8192)
    slab.row_bytes()[:] = case.cold.contiguous().view(torch.uint8).reshape(30, -1).numpy()
    there = torch.from_numpy(slab.row_addresses((-1 - case.rows).numpy()))
    return slab.view, torch.where(case.rows < 0, -1 - there, case.rows)


def compare(device: str) -> None:
    # each width is another compilation: half a second on a GPU, none by the interpreter
    widths = (64, 100) if device == "cuda" else (1, 64, 100)
    for seed, (precision, width) in enumerate((p, w) for p in PRECISIONS for w in widths):
        case = random_case(precision, width, seed)
        row_format, hot = case.row_format, case.hot.to(device)
        overlapping, addresses = grained(case)
        for cold, rows in ((case.cold, case.rows), (overlapping, addresses)):
            near = cold.pin_memory() if device == "cuda" else cold
            rows_there, offsets = rows.to(device), case.offsets.to(device)
            for bags in (offsets, None):
                count = 64 if bags is None else 21
                scales = (None, torch.rand(count))
                whiches = (None, torch.arange(0, count, 3), torch.arange(0))
                for scale in scales:
                    for which in whiches:
                        out = torch.full((count, width), torch.nan)
                        given = (row_format, hot, near, rows_there, bags)
                        choice = tuple(None if x is None else x.to(device) for x in (scale, which))
                        got = pool(*given, *choice, out.to(device)).cpu()
                        here = case.offsets if bags is not None else None
                        wanted = pooled(row_format, case.hot, cold, rows, here, scale, which, out)
                        torch.testing.assert_close(got, wanted, equal_nan=True)


@pytest.mark.parametrize("precision", [*PRECISIONS, "int4"])
def test_bags_of_both_memories_are_those_of_one_flat_store(precision: Precision) -> None:
    row_format, hot, cold, rows, offsets, scale, which = random_case(precision, 16, 3)
    flat = open_rows(torch.cat((hot, cold)), precision)
    with torch.inference_mode():
        wanted = flat.pool(torch.where(rows < 0, 40 - 1 - rows, rows), offsets)
        torch.testing.assert_close(pooled(row_format, hot, cold, rows, offsets), wanted)
        scaled = pooled(row_format, hot, cold, rows, offsets, scale, which, torch.full((21, 16), -7.0))
        torch.testing.assert_close(scaled[which], (wanted * scale[:, None])[which])
    others = torch.ones(21, dtype=torch.bool)
    others[which] = False
    assert others.any()
    assert (scaled[others] == -7).all()


@pytest.mark.gpu
def test_the_kernel_on_a_gpu() -> None:
    compare("cuda")


def test_the_kernel_by_tritons_interpreter() -> None:
    if not available():
        pytest.skip("no triton here (pip install triton: it runs the kernel on the cpu too)")
    command = "from tests.models.tiers.device.test_kernels import compare; compare('cpu')"
    done = subprocess.run(
        [sys.executable, "-c", command],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


COMPILED = """
from itertools import product
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from polyrec.models.tiers.device.kernels import pool_kernel

pointers = ("out", "hot", "cold", "rows", "offsets", "scale", "which")
aligned = {(i,): [["tt.divisibility", 16]] for i in range(len(pointers))}
for (kind, units, step), single, scaled, chosen in product(
    (("*fp32", 64, 64), ("*bf16", 64, 64), ("*u8", 67, 1)), *[(True, False)] * 3
):
    constants = {
        "WIDTH": 64, "HOT": units, "COLD": step, "BLOCK": 64, "BAGS": 16,
        "INT8": kind == "*u8", "SINGLE": single, "SCALED": scaled, "CHOSEN": chosen,
    }
    types = ("*fp32", kind, kind, "*i64", "*i64", "*fp32", "*i64")
    signature = dict(zip(pointers, types)) | {"bags": "i32"} | dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=pool_kernel, signature=signature, constexprs=constants, attrs=aligned)
    built = compile(source, target=GPUTarget("cuda", 90, 32))
    assert built.asm["cubin"]
    # rows are read sixteen bytes at a time, where they are aligned
    assert ("ld.global.v4" in built.asm["ptx"]) == (kind != "*u8")
"""


def test_the_kernel_compiles_for_hopper_where_there_is_none(tmp_path: Path) -> None:
    if not available():
        pytest.skip("no triton here (pip install triton: it compiles for a GPU without one)")
    if sys.platform != "linux":
        pytest.skip("triton brings its assembler for linux only")
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
