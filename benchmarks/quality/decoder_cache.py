"""Does MP-Rec's decoder cache pay? Nearest of N centroids of hash codes, in place of the decoder.

    python -m benchmarks.quality.decoder_cache --bundle DHE_BUNDLE --data FILE

For one table of a trained dhe: k-means over the codes of its ids (weighted by accesses), each
centroid answers with the mean vector of its ids. Reports, for each N, the quality on test rows when the
tail beyond the hottest rows is answered so, and the time of one search against one run of the decoder.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.bundle.derive import materialize
from polyrec.models.data.encoded import encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, fit_splitter
from polyrec.models.embeddings.computed import ComputedStage
from polyrec.models.embeddings.store import FloatRows
from polyrec.models.evaluation.metrics import evaluate
from polyrec.models.training.trainer import predict

HOT = 1000


def centroids(codes: torch.Tensor, weight: torch.Tensor, n: int, rounds: int = 8) -> torch.Tensor:
    """Weighted Lloyd iterations from a weighted random start; the nearest centroid of each code."""
    generator = torch.Generator().manual_seed(0)
    center = codes[torch.multinomial(weight, n, generator=generator)]
    for _ in range(rounds):
        nearest = torch.cat([torch.cdist(part, center).argmin(1) for part in codes.split(8192)])
        mass = torch.zeros(n).index_add_(0, nearest, weight)
        total = torch.zeros_like(center).index_add_(0, nearest, codes * weight[:, None])
        center = torch.where(mass[:, None] > 0, total / mass[:, None].clamp_min(1e-9), center)
    return nearest


def median_us(work: object, repeats: int = 30) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()  # type: ignore[operator]
        times.append(time.perf_counter() - begin)
    return float(np.median(times)) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bundle", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--table", default="item", help="the computed table (default item)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    bundle = load_bundle(args.bundle)
    stage = bundle.stage()
    assert isinstance(stage, ComputedStage)
    base, size = stage.rows.base[args.table], stage.rows.sizes[stage.rows.tables.index(args.table)]
    ids = torch.arange(base, base + size)
    reader = open_data(args.data, bundle.manifest.schema_)
    data = encode(reader, bundle.encoder, fit_splitter(reader, bundle.manifest.schema_), (TEST,))
    rows = np.arange(data.rows)
    model, _ = materialize(bundle)
    store = model.stage.store  # type: ignore[attr-defined]
    assert isinstance(store, FloatRows)
    exact = store.weight.detach().clone()
    counts = torch.from_numpy(bundle.encoder.vocabularies[args.table].counts[HOT:]).float().clamp_min(1)
    with torch.inference_mode():
        codes = torch.cat([stage.hashes(part) for part in ids[HOT:].split(4096)])
    found = []
    before = evaluate(predict(model, data, rows), data.label, data.group)
    batch = codes[:512]
    table = torch.zeros(len(stage.computed_tables), dtype=torch.int64)
    table[stage.computed_tables.index(args.table)] = 512
    with torch.inference_mode():
        decoder_us = median_us(lambda: stage.decoders(batch, table.numpy())) / 512
    print(f"decoder: {decoder_us:.2f} us a vector; log-loss {before.log_loss:.5f}, auc {before.auc:.5f}")
    for n in (1, 16, 64, 256, 1024, 4096):
        nearest = centroids(codes, counts, n)
        tail = exact[base + HOT : base + size]
        mass = torch.zeros(n).index_add_(0, nearest, counts)
        mean = torch.zeros(n, tail.shape[1]).index_add_(0, nearest, tail * counts[:, None])
        with torch.inference_mode():
            store.weight[base + HOT : base + size] = (mean / mass.clamp_min(1)[:, None])[nearest]
        after = evaluate(predict(model, data, rows), data.label, data.group)
        center = codes[:n].clone()
        with torch.inference_mode():
            search_us = median_us(lambda c=center: (batch @ c.t()).argmax(1)) / 512
        found.append(
            {
                "centroids": n,
                "auc": after.auc,
                "log_loss": after.log_loss,
                "search_us": round(search_us, 3),
                "decoder_us": round(decoder_us, 3),
                "variance_explained": 1
                - float(((mean / mass.clamp_min(1)[:, None])[nearest] - tail).var() / tail.var()),
            }
        )
        print(found[-1], flush=True)
    if args.json:
        out = {"exact": {"auc": before.auc, "log_loss": before.log_loss}, "hot_rows": HOT, "found": found}
        args.json.write_text(json.dumps(out, indent=2) + "\n")


if __name__ == "__main__":
    main()
