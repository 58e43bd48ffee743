"""The host tier's gather: against plain indexing, a flat store, and fbgemm where it is installed.

    python -m benchmarks.tiers.host --json docs/results/tier-host.json
    # with fbgemm:  pip install --no-deps --target /tmp/fbgemm fbgemm-gpu-cpu==1.8.0
    PYTHONPATH=/tmp/fbgemm python -m benchmarks.tiers.host ...

26 tables in one weight, a batch of 256 rows drawn by Zipf's law, medians in microseconds, one thread, all
ways taken in turns. `tiers` is all that a stack does for a batch: places, gather, figures, sample.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.tiers.generated_model import zipf
from polyrec.models.dlrm.precision import Precision
from polyrec.models.embeddings.store import open_rows, quantize
from polyrec.models.tiers.opening import open_stack, rows_of_weight
from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.tier_settings import TierSettings

TABLES, ROWS, BATCH, WIDTH = 26, 80_000, 256, 64


def measured(
    ways: dict[str, Callable[[torch.Tensor], object]], batches: list[torch.Tensor]
) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(len(batches)):
        for number, (name, way) in enumerate(ways.items()):
            # each its own batch: ways that share memory must not find what another has just read
            index = batches[(turn + 37 * number) % len(batches)]
            start = time.perf_counter()
            way(index)
            times[name].append(time.perf_counter() - start)
    return {name: 1e6 * statistics.median(t[len(t) // 5 :]) for name, t in times.items()}


def fbgemm(weight: torch.Tensor) -> Callable[[torch.Tensor], object] | None:
    """Returns fbgemm's table-batched look-up, one row a bag, all rows as one table; None without fbgemm."""
    try:
        import fbgemm_gpu  # noqa: F401
        from fbgemm_gpu.split_embedding_configs import SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
            IntNBitTableBatchedEmbeddingBagsCodegen as Bags,
        )
    except (ImportError, OSError):
        return None
    bags = Bags(
        [("all", weight.shape[0], weight.shape[1], SparseType.FP32, EmbeddingLocation.HOST)],
        device="cpu",
        output_dtype=SparseType.FP32,
    )
    bags.initialize_weights()
    offsets = torch.arange(TABLES * BATCH + 1, dtype=torch.int32)
    return lambda index: bags(index.int(), offsets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    base = np.arange(TABLES) * ROWS
    batches = [
        torch.from_numpy((zipf(random, ROWS, 1.0, BATCH * TABLES).reshape(BATCH, TABLES) + base).ravel())
        for _ in range(args.batches)
    ]
    sizes = {f"t{i}": ROWS for i in range(TABLES)}
    found: dict[str, dict[str, float]] = {}
    precisions: tuple[Precision, ...] = ("fp32", "int8")
    with torch.inference_mode():
        for precision in precisions:
            weight = quantize(torch.randn(TABLES * ROWS, WIDTH), precision)
            row_format = RowFormat(WIDTH, precision)
            flat = open_rows(weight, precision)
            ways: dict[str, Callable[[torch.Tensor], object]] = {
                "plain indexing": lambda i, w=weight: w[i],  # type: ignore[misc]
                "flat store": flat.gather,
            }
            stacks = []
            for name, huge in (("tiers", True), ("tiers, small pages", False)):
                placement = TierSettings(huge_pages=huge)
                stacks.append(open_stack(row_format, sizes, rows_of_weight(weight, row_format), placement))
                ways[name] = TieredRows(stacks[-1]).gather
            peer = fbgemm(weight) if precision == "fp32" else None
            if peer is not None:
                ways["fbgemm"] = peer
            found[precision] = measured(ways, batches)
            for stack in stacks:
                stack.close()
            print(precision, {k: round(v, 1) for k, v in found[precision].items()})
    if args.json:
        args.json.write_text(json.dumps({"lookups": TABLES * BATCH, "microseconds": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
