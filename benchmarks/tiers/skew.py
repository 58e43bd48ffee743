"""Hit rates of the tiers: against LRU, LFU and the clairvoyant best static choice, and after drift.

    python -m benchmarks.tiers.skew --data ../shared/data --json docs/results/tier-skew.json

On each data set the order and the cuts come from the training rows; what is counted are the look-ups of the
held-out rows in their order (later in time where the split is one of time), as a server makes them: contexts
once a request. A budget is a share of the bytes of all rows (of 64 floats). Everything has the same bytes,
its own books included:

    cuts          the prefixes that one threshold on accesses per byte keeps
    tiers         a real stack as benchmarks.tiers.memory_split shares the budget: cuts and a cache
    followed      the same, and a new order is built after every tenth of the held-out look-ups
    lru, lfu      caches of rows over all tables, warmed by the training rows' look-ups
    clairvoyant   the best static choice: the rows most looked up by the held-out rows themselves
    foretold      cuts, and a cache that never forgets and costs nothing: what misses is only the first
                  look-up of each row that the training rows did not put within the budget
    belady        the best cache there can be, with the future known

A look-up is a hit if the row is in memory when it comes, or an earlier look-up of the same batch has read
it, as for caches that take look-ups one by one.

The drifting data are generated: popularity within a city goes round once between first and last row. Of
generated-few, every row is looked up often, so that its count is known well. `shifted` is a sudden drift: in
the middle of the held-out look-ups each table's rows exchange their popularity.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.tiers import rivals
from benchmarks.tiers.memory_split import split_memory
from polyrec.models.data.encoded import EncodedRows, encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, TRAIN, VALIDATION, fit_splitter
from polyrec.models.data.synthetic.generator import generate
from polyrec.models.embeddings.cuts import stored_within
from polyrec.models.embeddings.lookups import FusedRows
from polyrec.models.schema.batch import I64
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.popularity import calibrate
from polyrec.models.schema.schema import load_schema
from polyrec.models.tiers.opening import open_stack
from polyrec.models.tiers.row_format import RowFormat
from polyrec.models.tiers.rows import TieredRows
from polyrec.models.tiers.tier_settings import CACHED, TierSettings
from polyrec.models.tiers.updates.drift import Drift

BATCH_ROWS = 64
SHARES = (0.05, 0.125, 0.25)
FORM = RowFormat(64, "fp32")
FOLLOWED = 10
SHIFTED = ("generated-few", "trivago")


@dataclass(frozen=True)
class SkewData:
    """A data set as a server that was calibrated on its training rows meets it."""

    encoder: Encoder
    fused: FusedRows
    warm: I64
    batches: list[I64]

    @property
    def held_out(self) -> I64:
        return np.concatenate(self.batches)


def streams(data: EncodedRows, fused: FusedRows, *splits: int) -> Iterator[I64]:
    """Rows looked up, batch by batch."""
    rows = data.select(*splits)
    for start in range(0, rows.size, BATCH_ROWS):
        yield fused.lookups(data.batch(rows[start : start + BATCH_ROWS])).rows()


def world_of(path: Path, schema_name: str, on_validation: bool) -> SkewData:
    schema = load_schema(schema_name)
    reader = open_data(path, schema)
    splitter = fit_splitter(reader, schema)
    past, held_out = ((TRAIN,), VALIDATION) if on_validation else ((TRAIN, VALIDATION), TEST)
    calibration = calibrate(reader, schema, splitter, which=past)
    encoder = Encoder(schema, calibration.vocabularies, calibration.standards)
    fused = FusedRows(schema, {t: v.rows for t, v in encoder.vocabularies.items()})
    with encode(reader, encoder, splitter) as data:
        warm = np.concatenate(list(streams(data, fused, *past)))
        return SkewData(encoder, fused, warm, list(streams(data, fused, held_out)))


def within(fused: FusedRows, cuts: dict[str, int]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """bool [rows of all tables], those before the cuts."""
    inside = np.zeros(fused.total, bool)
    for table, rows in cuts.items():
        inside[fused.base[table] : fused.base[table] + rows] = True
    return inside


def served(world: SkewData, budget: int, cached: float, follow: bool) -> dict[str, Any]:
    """The hit rate of a real stack on the held-out rows, as a whole and in each tenth."""
    fused = world.fused
    vocabularies = {t: world.encoder.vocabularies[t] for t in fused.tables}
    share = split_memory(vocabularies, FORM.bytes, budget, cached=cached)
    tenth = max(-(-len(world.batches) // FOLLOWED), 1)
    rates: list[float] = []
    moved = 0
    with tempfile.TemporaryDirectory() as folder:
        placement = TierSettings(
            cuts=share.cuts, cache_bytes=share.cache_bytes, cached=cached, directory=Path(folder)
        )
        sizes = dict(zip(fused.tables, fused.sizes, strict=True))
        stack = open_stack(
            FORM,
            sizes,
            lambda first, count: np.zeros((count, FORM.bytes), np.uint8),
            placement,
            world.encoder,
        )
        tiers = stack.tiers
        used = tiers.host_bytes
        drift = Drift(stack, every=1)
        rows = TieredRows(stack)
        first = now = looked = 0
        place = np.arange(fused.total)
        for number, batch in enumerate(world.batches):
            with rows.generation():
                rows.gather(torch.from_numpy(place[batch]))
            if (number + 1) % tenth == 0 or number + 1 == len(world.batches):
                levels = stack.figures().levels
                now = levels["host"].hits + levels["cache"].hits
                total = levels["host"].lookups
                rates.append((now - first) / (total - looked))
                first, looked = now, total
                if follow:
                    moved += drift.reorder().rows
                    newest = stack.views.newest.encoder
                    assert newest is not None
                    for table in fused.tables:
                        was = vocabularies[table].rank_of_id
                        base = fused.base[table]
                        place[base + was] = base + newest.vocabularies[table].rank_of_id
        result = {"hit_rate": now / looked, "by_tenth": rates, "rows_moved": moved, "bytes": used}
        stack.close()
    return result


def compare(name: str, world: SkewData, cached: float) -> dict[str, Any]:
    fused, held_out = world.fused, world.held_out
    looked = np.bincount(held_out, minlength=fused.total)
    unknown = sum(int(looked[fused.base[t] + world.encoder.vocabularies[t].oov_rank]) for t in fused.tables)
    found: dict[str, Any] = {
        "rows": fused.total,
        "held_out_lookups": int(held_out.size),
        "held_out_rows": int((looked > 0).sum()),
        "held_out_lookups_unknown": unknown / held_out.size,
        "budgets": {},
    }
    for share in SHARES:
        size = int(fused.total * share)
        budget = size * FORM.bytes
        inside = within(fused, stored_within(world.encoder.vocabularies, size))
        first = int((looked[~inside] > 0).sum())
        best = rivals.clairvoyant(held_out, size)
        lfu_rows = max(budget - fused.total * rivals.LFU_COUNT, 0) // (FORM.bytes + rivals.LFU_BOOKS)
        own: dict[str, Any] = {
            "cuts": float(looked[inside].sum() / held_out.size),
            "tiers": served(world, budget, cached, False),
            "followed": served(world, budget, cached, True),
            "lru": rivals.lru(world.warm, held_out, budget // (FORM.bytes + rivals.LRU_BOOKS)),
            "lfu": rivals.lfu(world.warm, held_out, lfu_rows),
            "clairvoyant": best,
            "foretold": 1.0 - first / held_out.size,
            "belady": rivals.belady(held_out, size),
        }
        for kind in ("tiers", "followed"):
            own[f"{kind}_of_clairvoyant"] = own[kind]["hit_rate"] / best
        found["budgets"][str(share)] = own
        print(
            f"| {name} | {share:.1%} | {own['cuts']:.4f} | {own['tiers']['hit_rate']:.4f} "
            f"| {own['followed']['hit_rate']:.4f} | {own['lru']:.4f} | {own['lfu']:.4f} | {best:.4f} "
            f"| {own['tiers_of_clairvoyant']:.3f} | {own['followed_of_clairvoyant']:.3f} "
            f"| {own['foretold']:.4f} | {own['belady']:.4f} |",
            flush=True,
        )
    return found


def shifted(name: str, world: SkewData, cached: float) -> dict[str, Any]:
    """Hit rates by tenth where popularity changes hands in the middle; best static choice of each half."""
    random = np.random.default_rng(1)
    fused = world.fused
    other = np.arange(fused.total)
    for table, size in zip(fused.tables, fused.sizes, strict=True):
        base = fused.base[table]
        other[base : base + size] = base + random.permutation(size)
    tenth = max(-(-len(world.batches) // FOLLOWED), 1)
    middle = tenth * (FOLLOWED // 2)
    batches = [b if i < middle else other[b] for i, b in enumerate(world.batches)]
    after = SkewData(world.encoder, fused, world.warm, batches)
    size = int(fused.total * SHARES[1])
    found: dict[str, Any] = {
        "clairvoyant_before": rivals.clairvoyant(np.concatenate(batches[:middle]), size),
        "clairvoyant_after": rivals.clairvoyant(np.concatenate(batches[middle:]), size),
    }
    for kind, follow in (("tiers", False), ("followed", True)):
        found[kind] = served(after, size * FORM.bytes, cached, follow)
        print(f"{name} shifted, {kind}: {tenths(found[kind]['by_tenth'])}", flush=True)
    return found


def tenths(rates: Sequence[float]) -> str:
    return " ".join(f"{rate:.3f}" for rate in rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--rows", type=int, default=300_000, help="generated, for each of the three")
    parser.add_argument("--only", nargs="*", help="names of data sets")
    parser.add_argument("--cached", type=float, default=CACHED, help="share of the budget for the cache")
    parser.add_argument(
        "--validation",
        action="store_true",
        help="calibrate on the training rows without the validation rows, and hold those out: for choosing",
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    report: dict[str, Any] = {"cached": args.cached, "shifted": {}}
    generated = {"generated": (20_000, 0.0), "generated-drift": (20_000, 1.0), "generated-few": (1000, 0.0)}
    files = {"trivago": "impressions.parquet", "bookcrossing": "ratings.parquet"}
    with tempfile.TemporaryDirectory() as folder:
        for name in (*generated, *files):
            if args.only and name not in args.only:
                continue
            if name in generated:
                ids, drift = generated[name]
                path = Path(folder) / f"{name}.parquet"
                generate(path, args.rows, 5, items=ids, users=ids, drift=drift)
            else:
                path = args.data / name / files[name]
            if not path.exists():
                print(f"no {path}: left out")
                continue
            world = world_of(path, name if name in files else "trivago", args.validation)
            report[name] = compare(name, world, args.cached)
            if name in SHIFTED:
                report["shifted"][name] = shifted(name, world, args.cached)
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
