"""Hit rates of the cuts: against LRU, LFU and the clairvoyant best static choice, and after drift.

    python -m benchmarks.tier_skew --data ../shared/data --json docs/results/tier-skew.json

On each data set the order and the cuts come from the training rows; what is counted are the look-ups of the
held-out rows in their order (later in time where the split is one of time), as a server makes them: contexts
once a request. For each budget, in rows of all tables together:

    cuts          the prefixes that one threshold on accesses per byte keeps
    lru, lfu      caches of as many rows over all tables, warmed by the training rows' look-ups
    clairvoyant   the best static choice: the rows most looked up by the held-out rows themselves
    tiers         a real stack: four fifths of the rows as prefixes, one fifth as cached pages of the file
    followed      the same, and a new order is built after every tenth of the held-out look-ups

The drifting data are generated: popularity within a city goes round once between first and last row. Of
generated-few, every row is looked up often, so that its count is known well.
"""

from __future__ import annotations

import argparse
import heapq
import json
import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.batch import I64
from models.data.encoded import Encoded, encode
from models.data.generator import generate
from models.data.reader import open_data
from models.data.split import TEST, TRAIN, VALIDATION, split_of
from models.embeddings.cuts import stored_within, tiers_within
from models.embeddings.lookups import FusedRows
from models.embeddings.tiers.drift import Drift
from models.embeddings.tiers.form import RowForm
from models.embeddings.tiers.opening import open_stack
from models.embeddings.tiers.placement import PAGE_BYTES, Placement
from models.embeddings.tiers.rows import TieredRows
from models.encoder import Encoder
from models.popularity import calibrate
from models.schema import load_schema

BATCH_ROWS = 64
SHARES = (0.05, 0.125, 0.25)
FORM = RowForm(64, "fp32")
CACHED = 0.2
FOLLOWED = 10


def streams(data: Encoded, fused: FusedRows, *splits: int) -> Iterator[I64]:
    """Rows looked up, batch by batch."""
    rows = data.select(*splits)
    for start in range(0, rows.size, BATCH_ROWS):
        yield fused.lookups(data.batch(rows[start : start + BATCH_ROWS])).rows()


def lru(warm: I64, held_out: I64, size: int) -> float:
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for phase, lookups in enumerate((warm, held_out)):
        for row in lookups.tolist():
            if row in cache:
                cache.move_to_end(row)
                hits += phase
            else:
                cache[row] = None
                if len(cache) > size:
                    cache.popitem(last=False)
    return hits / held_out.size


def lfu(warm: I64, held_out: I64, size: int) -> float:
    """Counts of every row ever seen; a row that misses replaces the least counted if that counts less."""
    count: dict[int, int] = {}
    cached: set[int] = set()
    coldest: list[tuple[int, int]] = []
    hits = 0
    for phase, lookups in enumerate((warm, held_out)):
        for row in lookups.tolist():
            count[row] = own = count.get(row, 0) + 1
            if row in cached:
                hits += phase
                continue
            while coldest and (coldest[0][1] not in cached or count[coldest[0][1]] != coldest[0][0]):
                _, stale = heapq.heappop(coldest)
                if stale in cached:
                    heapq.heappush(coldest, (count[stale], stale))
            if len(cached) < size:
                cached.add(row)
                heapq.heappush(coldest, (own, row))
            elif coldest and coldest[0][0] < own:
                _, gone = heapq.heappop(coldest)
                cached.discard(gone)
                cached.add(row)
                heapq.heappush(coldest, (own, row))
    return hits / held_out.size


def clairvoyant(held_out: I64, size: int) -> float:
    _, counts = np.unique(held_out, return_counts=True)
    return float(np.sort(counts)[::-1][:size].sum() / held_out.size)


def served(encoder: Encoder, data: Encoded, fused: FusedRows, size: int, follow: bool) -> dict[str, Any]:
    """The hit rate of a real stack on the held-out rows, as a whole and in each tenth."""
    vocabularies = encoder.vocabularies
    cached = int(size * CACHED)
    pages = max(cached * FORM.bytes // PAGE_BYTES, 1)
    budgets = {"host": (size - cached) * FORM.bytes, "disk": 0}
    cuts = tiers_within({t: vocabularies[t] for t in fused.tables}, FORM.bytes, budgets)
    batches = list(streams(data, fused, TEST))
    tenth = max(-(-len(batches) // FOLLOWED), 1)
    rates: list[float] = []
    moved = 0
    with tempfile.TemporaryDirectory() as folder:
        placement = Placement.model_validate(
            {"cuts": cuts, "cache_bytes": pages * PAGE_BYTES, "directory": folder}
        )
        sizes = dict(zip(fused.tables, fused.sizes, strict=True))
        stack = open_stack(
            FORM, sizes, lambda first, count: np.zeros((count, FORM.bytes), np.uint8), placement, encoder
        )
        stack.sample.every = 1
        drift = Drift(stack)
        rows = TieredRows(stack)
        first = now = 0
        looked = 0
        place = np.arange(fused.total)
        for number, batch in enumerate(batches):
            with rows.generation():
                rows.gather(torch.from_numpy(place[batch]))
            if (number + 1) % tenth == 0 or number + 1 == len(batches):
                levels = stack.figures().levels
                now = levels["host"].hits + levels["cache"].hits
                total = levels["host"].lookups
                rates.append((now - first) / (total - looked))
                first, looked = now, total
                if follow:
                    moved += drift.follow().rows
                    newest = stack.views.newest.encoder
                    assert newest is not None
                    for table in fused.tables:
                        was = vocabularies[table].rank_of_id
                        base = fused.base[table]
                        place[base + was] = base + newest.vocabularies[table].rank_of_id
        result = {"hit_rate": now / looked, "by_tenth": rates, "rows_moved": moved}
        stack.close()
    return result


def compare(path: Path, schema_name: str) -> dict[str, Any]:
    schema = load_schema(schema_name)
    reader = open_data(path, schema)
    splitter = split_of(reader, schema)
    calibration = calibrate(reader, schema, splitter, which=(TRAIN, VALIDATION))
    encoder = Encoder(schema, calibration.vocabularies, calibration.standards)
    fused = FusedRows(schema, {t: v.rows for t, v in encoder.vocabularies.items()})
    with encode(reader, encoder, splitter) as data:
        warm = np.concatenate(list(streams(data, fused, TRAIN, VALIDATION)))
        held_out = np.concatenate(list(streams(data, fused, TEST)))
        found: dict[str, Any] = {"rows": fused.total, "held_out_lookups": int(held_out.size), "budgets": {}}
        for share in SHARES:
            size = int(fused.total * share)
            cuts = stored_within(encoder.vocabularies, size)
            hits = sum(
                int(((held_out >= fused.base[t]) & (held_out < fused.base[t] + n)).sum())
                for t, n in cuts.items()
            )
            best = clairvoyant(held_out, size)
            own = {
                "cuts": hits / held_out.size,
                "lru": lru(warm, held_out, size),
                "lfu": lfu(warm, held_out, size),
                "clairvoyant": best,
                "tiers": served(encoder, data, fused, size, False),
                "followed": served(encoder, data, fused, size, True),
            }
            own["cuts_of_clairvoyant"] = own["cuts"] / best
            found["budgets"][str(share)] = own
            print(
                f"{path.name:<22} {share:>6.1%}  cuts {own['cuts']:.4f}  lru {own['lru']:.4f}  "
                f"lfu {own['lfu']:.4f}  clairvoyant {best:.4f} ({own['cuts_of_clairvoyant']:.3f})  "
                f"tiers {own['tiers']['hit_rate']:.4f}  followed {own['followed']['hit_rate']:.4f}",
                flush=True,
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--rows", type=int, default=400_000, help="generated, for each of the two")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    report = {}
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"generated": (20_000, 0.0), "generated-drift": (20_000, 1.0), "generated-few": (1000, 0.0)}
        for name, (ids, drift) in sizes.items():
            path = Path(folder) / f"{name}.parquet"
            generate(path, args.rows, 5, items=ids, users=ids, drift=drift)
            report[name] = compare(path, "trivago")
    for name, file in (("trivago", "impressions.parquet"), ("bookcrossing", "ratings.parquet")):
        path = args.data / name / file
        if path.exists():
            report[name] = compare(path, name)
        else:
            print(f"no {path}: left out")
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
