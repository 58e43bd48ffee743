"""Compares lookups in the device tier with the limit of its memory bandwidth, and with three alternatives.

    benchmarks/gpu.sh                                             # on a machine with a GPU
    python -m benchmarks.gpu.lookup --device cpu --small          # the same steps, to see that they work

In each of three parts, all implementations are first compared on the same batches, then timed in turns
(A B A B); figures are medians:
    kernel        the lookup kernel alone, on the device's clock, with lookups of different rows in sequence,
                  at hit rates of 100, 99, 95 and 80%; the floor is the bytes moved divided by the bandwidth
                  of copies in the same run (device memory for hits, the bus for misses)
    lookups       a batch's lookups from ranks on the host to vectors on the device, on the wall clock: misses
                  read in place, gathered and copied, or chosen while serving; and alternatives, see
                  benchmarks/gpu/model.py
    predictions   the same with the dense net (13-512-256-64, 512-256-1) and the answers on the host, batches
                  of 1 to 4096 rows
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.command import command_parser, save
from benchmarks.gpu.model import WIDTH, GpuModel, Predict, lookup_variants, predictions
from polyrec.models.schema.batch import Batch
from polyrec.models.tiers.device.kernels import PRECISIONS, available, sums
from polyrec.models.tiers.device.lookup_bags import bags_in_slot_order
from polyrec.models.tiers.layout import DEVICE, RowLocations
from polyrec.report.text import markdown_table

HITS = (1.0, 0.99, 0.95, 0.8)
ROTATED = 8
"""Number of different batches looked up in turn, so that no cache holds the rows of one."""


@dataclass(frozen=True, slots=True)
class Size:
    """rows: of each table. copied: bytes of the copies that measure bandwidth."""

    rows: int
    batches: tuple[int, ...]
    kernel_batches: tuple[int, ...]
    repeats: int
    copied: int


FULL = Size(100_000, (1, 4, 16, 64, 256, 1024, 4096), (64, 1024, 4096), 60, 1 << 30)
SMALL = Size(400, (1, 5, 64), (16,), 3, 1 << 20)


def _sum_bags(
    bag: torch.nn.EmbeddingBag, batches: Sequence[tuple[Tensor, Tensor, Tensor]], offsets: Tensor
) -> None:
    for _, fused, _ in batches:
        bag(fused, offsets)


def wait(device: torch.device) -> None:
    """Waits until the device has executed all that was started."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def device_us(work: Callable[[], object], device: torch.device, repeats: int, together: int) -> float:
    """Returns the median microseconds of one of the `together` pieces of device work that `work` starts.

    They are replayed as one graph, so that the device is timed rather than the launches.
    """
    work()
    wait(device)
    if device.type != "cuda":
        times = []
        for _ in range(repeats):
            begun = time.perf_counter()
            work()
            times.append(1e6 * (time.perf_counter() - begun))
        return statistics.median(times) / together
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    times = []
    for i in range(repeats + 3):
        start, end = _event(), _event()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= 3:
            times.append(1e3 * start.elapsed_time(end))
    return statistics.median(times) / together


def median_us(
    tried: Mapping[str, Predict], batches: list[Batch], device: torch.device, repeats: int
) -> dict[str, float]:
    """Returns each variant's median wall-clock microseconds; variants take turns on the same batches."""
    times: dict[str, list[float]] = {name: [] for name in tried}
    for i in range(-3, repeats):
        batch = batches[i % len(batches)]
        for name, variant in tried.items():
            wait(device)
            begun = time.perf_counter()
            variant(batch)
            wait(device)
            if i >= 0:
                times[name].append(1e6 * (time.perf_counter() - begun))
    return {name: statistics.median(t) for name, t in times.items()}


def require_equal(tried: Mapping[str, Predict], batches: list[Batch]) -> None:
    """Raises SystemExit unless all variants give the same numbers."""
    for batch in batches:
        answers = {name: torch.as_tensor(variant(batch)).cpu().clone() for name, variant in tried.items()}
        first = next(iter(answers.values()))
        for name, answer in answers.items():
            if not torch.allclose(answer, first, atol=1e-4, rtol=1e-4):
                raise SystemExit(f"{name} gives other numbers: {(answer - first).abs().max():g} apart")


def bandwidths(device: torch.device, size: Size) -> dict[str, float]:
    """Returns bytes/s of device memory (read and written by a copy) and of the bus (from pinned memory)."""
    source = torch.ones(size.copied // 4, device=device)
    target = torch.empty_like(source)
    memory_us = device_us(lambda: target.copy_(source), device, 10, 1)
    host = torch.ones(size.copied // 4, pin_memory=device.type == "cuda")
    times = []
    for _ in range(5):
        wait(device)
        begun = time.perf_counter()
        target.copy_(host, non_blocking=True)
        wait(device)
        times.append(time.perf_counter() - begun)
    return {"memory": 2 * source.nbytes / memory_us * 1e6, "bus": host.nbytes / statistics.median(times)}


def kernel(model: GpuModel, size: Size, rates: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """Times the kernel alone, with its lookups already on the device."""
    hot, slab, row_format = model.stack.tiers.device, model.stack.tiers.slab, model.row_format
    assert hot is not None
    stage = model.tiered(None)
    bag = None
    if row_format.precision == "fp32":
        bag = torch.nn.EmbeddingBag.from_pretrained(model.weight.to(model.device), mode="sum")
    for rows in size.kernel_batches:
        for hit in HITS:
            given: list[tuple[Tensor, Tensor, Tensor]] = []
            misses = 0
            for _ in range(ROTATED):
                fused = bags_in_slot_order(stage.rows.lookups(model.batch(rows, hit))).rows
                where = RowLocations.locate(model.stack.tiers.layout, fused)
                cold = where.tier != DEVICE
                misses += int(cold.sum())
                codes = np.where(cold, -1 - slab.row_addresses(where.local), where.local)
                there = (torch.from_numpy(codes).to(model.device), torch.from_numpy(fused).to(model.device))
                given.append((*there, torch.empty((fused.size, WIDTH), device=model.device)))
            count = given[0][0].numel()

            def run(all_of: Any = given) -> None:
                for codes, _, out in all_of:
                    sums(row_format, hot, slab.view, codes, None, None, None, out)

            one: dict[str, Any] = {
                "precision": row_format.precision,
                "batch": rows,
                "hit": hit,
                "lookups": count,
            }
            memory_bytes = (count - misses / ROTATED) * row_format.bytes + count * (4 * WIDTH + 8)
            bus_bytes = misses / ROTATED * row_format.bytes
            one["floor_us"] = 1e6 * max(memory_bytes / rates["memory"], bus_bytes / rates["bus"])
            one["kernel_us"] = device_us(run, model.device, size.repeats, ROTATED)
            if bag is not None and hit == 1.0:
                offsets = torch.arange(count, device=model.device)
                one["embedding_bag_us"] = device_us(
                    partial(_sum_bags, bag, given, offsets),
                    model.device,
                    size.repeats,
                    ROTATED,
                )
            one["over_floor"] = one["kernel_us"] / one["floor_us"]
            yield one


def timed(
    model: GpuModel, tried: Mapping[str, Predict], size: Size, batches: tuple[int, ...]
) -> Iterator[dict[str, Any]]:
    """Times all variants of lookup and prediction, in turns, at each batch size and hit rate.

    tried: by name. Raises SystemExit if two of them disagree.
    """
    for rows in batches:
        for hit in HITS:
            drawn = [model.batch(rows, hit) for _ in range(ROTATED)]
            require_equal(tried, drawn[:2])
            # which also lets `tiers` try direct and copied misses before it is timed
            repeats = size.repeats if rows < 1024 else size.repeats // 2 + 1
            times = median_us(tried, drawn, model.device, repeats)
            others = [times[n] for n in ("gather_and_copy", "embedding_bag") if n in times]
            yield {
                "precision": model.row_format.precision,
                "batch": rows,
                "hit": hit,
                "us": times,
                "tiers_over_best_other": times["tiers"] / min(others),
            }


def table(report: Mapping[str, Any]) -> str:
    """Formats the results as a table."""
    lines = [f"{report['device']}: memory {report['bytes_per_s']['memory'] / 1e9:.0f} GB/s,"]
    lines[0] += f" bus {report['bytes_per_s']['bus'] / 1e9:.1f} GB/s"
    cells = []
    for k in report["kernel"]:
        bag = f"{k['embedding_bag_us']:.1f}" if "embedding_bag_us" in k else ""
        times = [f"{k['floor_us']:.1f}", f"{k['kernel_us']:.1f}", f"{k['over_floor']:.2f}", bag]
        cells.append([k["precision"], str(k["batch"]), f"{k['hit']:.0%}", *times])
    head = ["kernel", "batch", "hit", "floor us", "kernel us", "over floor", "embedding bag us"]
    lines += ["", *markdown_table(head, cells)]
    for part in ("lookups", "predictions"):
        for precision in dict.fromkeys(r["precision"] for r in report[part]):
            rows = [r for r in report[part] if r["precision"] == precision]
            names = list(rows[0]["us"])
            cells = []
            for r in rows:
                times = [f"{r['us'][n]:.0f}" for n in names]
                best = f"{r['tiers_over_best_other']:.2f}"
                cells.append([str(r["batch"]), f"{r['hit']:.0%}", *times, best])
            head = [f"{part}, {precision}: batch", "hit", *names, "of best other"]
            lines += ["", *markdown_table(head, cells)]
    return "\n".join(lines)


def measure(device: torch.device, size: Size, out: Path | None = None) -> dict[str, Any]:
    """Measures everything; writes the figures after each precision.

    Raises SystemExit if two implementations disagree."""
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "torch": torch.__version__,
        "kernel_by": "triton" if device.type == "cuda" and available() else "torch",
        "rows_a_table": size.rows,
        "bytes_per_s": bandwidths(device, size),
        "kernel": [],
        "lookups": [],
        "predictions": [],
    }
    for precision in PRECISIONS:
        model = GpuModel(device, size.rows, precision)
        # modules cannot be moved within inference mode
        looking, predicting = lookup_variants(model), predictions(model) if precision == "fp32" else {}
        with torch.inference_mode():
            report["kernel"] += list(kernel(model, size, report["bytes_per_s"]))
            report["lookups"] += list(timed(model, looking, size, size.kernel_batches))
            if predicting:
                report["predictions"] += list(timed(model, predicting, size, size.batches))
        save(out, report)
        model.close()
        print(f"{precision} done", flush=True)
    return report


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--device", default="cuda", help="cuda (the default), or cpu to try the steps")
    parser.add_argument("--small", action="store_true", help="small tables, few repetitions: no figures")
    parser.add_argument("--json", type=Path, help="where the figures go")
    args = parser.parse_args()
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device here: --device cpu --small tries the steps without one")
    torch.set_num_threads(1)
    print(table(measure(device, SMALL if args.small else FULL, args.json)))


if __name__ == "__main__":
    main()
