"""Look-ups on a GPU: the kernel against the floor of its memory, and against three other ways.

    benchmarks/gpu.sh

The floor is the bytes moved over the bandwidth that a copy of a gigabyte reaches. For each hit rate, all in
one batch of 26 tables: the kernel (misses read from pinned host memory), the host's gather of the misses
copied over, and, at 100%, torch.nn.EmbeddingBag. Then one prediction, look-up and dense net, at batches of 1
to 4096 rows: all on the GPU, the tiers, and the whole gather on the host. Medians of CUDA events.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.tiers_model import model
from models.dlrm import Architecture, DenseNet, Inputs, dense_slots
from models.embeddings.stage import PerBlock
from models.embeddings.store import quantise
from models.embeddings.tiers.form import RowForm
from models.embeddings.tiers.kernels import PRECISIONS, pool

TABLES, WIDTH, HOT, COLD = 26, 64, 8_000_000, 2_000_000
HITS = (1.0, 0.99, 0.95, 0.8)
BATCHES = (1, 4, 16, 64, 256, 1024, 4096)


def median_us(work: Callable[[], object], repeats: int = 50) -> float:
    for _ in range(5):
        work()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end))
    return statistics.median(times)


def bandwidth() -> float:
    """Bytes/s of a copy on the device, read and written."""
    source = torch.empty(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / (median_us(lambda: target.copy_(source)) * 1e-6)


def rows_of(batch: int, hit: float) -> torch.Tensor:
    """int64 on the host: rows of the device, and for misses -1 - row of the host."""
    count = batch * TABLES
    cold = torch.rand(count) >= hit
    return torch.where(cold, -1 - torch.randint(COLD, (count,)), torch.randint(HOT, (count,)))


def gathered_on_host(
    form: RowForm, hot: torch.Tensor, cold: torch.Tensor, rows: torch.Tensor
) -> Callable[[], torch.Tensor]:
    """Hotline: hot rows where they are, meanwhile the others on the host, then copied over."""
    out = torch.empty((rows.numel(), form.units), dtype=form.unit, device="cuda")
    missing = torch.nonzero(rows < 0).squeeze(1)
    wanted = -1 - rows[missing]
    staged = torch.empty((missing.numel(), form.units), dtype=form.unit).pin_memory()

    def work() -> torch.Tensor:
        torch.index_select(hot, 0, rows.clamp_min(0).to("cuda", non_blocking=True), out=out)
        if missing.numel():
            torch.index_select(cold, 0, wanted, out=staged)
            out.index_copy_(0, missing.to("cuda", non_blocking=True), staged.to("cuda", non_blocking=True))
        return form.decode(out)

    return work


def lookups(per_second: float) -> list[dict[str, Any]]:
    found = []
    for precision in PRECISIONS:
        form = RowForm(WIDTH, precision)
        hot = torch.cat([quantise(torch.randn(HOT // 8, WIDTH), precision) for _ in range(8)]).cuda()
        cold = quantise(torch.randn(COLD, WIDTH), precision).pin_memory()
        bag = torch.nn.EmbeddingBag.from_pretrained(hot.float(), mode="sum") if precision == "fp32" else None
        for batch in BATCHES:
            offsets = torch.arange(batch * TABLES + 1, device="cuda")
            out = torch.empty((batch * TABLES, WIDTH), device="cuda")
            floor_us = 1e6 * batch * TABLES * (form.bytes + 4 * WIDTH + 16) / per_second
            for hit in HITS:
                rows = rows_of(batch, hit)
                there = rows.cuda()
                one: dict[str, Any] = {
                    "precision": precision,
                    "batch": batch,
                    "hit": hit,
                    "floor_us": floor_us,
                }
                one["kernel_us"] = median_us(
                    lambda h=hot, c=cold, t=there, o=offsets, f=form, to=out: pool(f, h, c, t, o, to)
                )
                one["host_gather_us"] = median_us(gathered_on_host(form, hot, cold, rows))
                if bag is not None and hit == 1.0:
                    one["embedding_bag_us"] = median_us(lambda b=bag, t=there, o=offsets: b(t, o[:-1]))
                found.append(one)
                print(one, flush=True)
        del hot, cold, bag
    return found


def predictions() -> list[dict[str, Any]]:
    """Look-up and dense net of a batch, rows of 64 floats."""
    schema = model(1000).schema
    shape = Architecture(width=WIDTH, bottom=(512, 256), top=(512, 256))
    net = DenseNet(shape, dense_slots(schema), PerBlock(0, TABLES)).eval().cuda()
    form = RowForm(WIDTH, "fp32")
    hot, cold = torch.randn(HOT, WIDTH).cuda(), torch.randn(COLD, WIDTH).pin_memory()
    found = []
    for batch in BATCHES:
        offsets = torch.arange(batch * TABLES + 1, device="cuda")
        dense = torch.randn(batch, len(schema.dense), device="cuda")
        none = torch.empty(batch, 0, device="cuda"), torch.empty(batch, 0, WIDTH, device="cuda")
        row: dict[str, Any] = {"batch": batch}

        def predict(vectors: torch.Tensor, rows: int = batch, given: Any = (dense, none)) -> torch.Tensor:
            mine, (no_dense, no_vectors) = given
            inputs = Inputs(no_dense, mine, no_vectors, vectors.view(rows, TABLES, WIDTH), None)
            return torch.sigmoid(net(inputs)).cpu()

        for name, hit in (("all_on_gpu", 1.0), ("tiers_95", 0.95)):
            there = rows_of(batch, hit).cuda()
            row[f"{name}_us"] = median_us(
                lambda t=there, o=offsets, p=predict: p(pool(form, hot, cold, t, o))
            )
        for name, hit in (("gather_and_copy_95", 0.95), ("all_on_host", 0.0)):
            work = gathered_on_host(form, hot, cold, rows_of(batch, hit))
            row[f"{name}_us"] = median_us(lambda w=work, p=predict: p(w()))
        found.append(row)
        print(row, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device here: nothing to measure")
    with torch.inference_mode():
        per_second = bandwidth()
        report = {
            "device": torch.cuda.get_device_name(),
            "bytes_per_s": per_second,
            "lookups": lookups(per_second),
            "predictions": predictions(),
        }
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
