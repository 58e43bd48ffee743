"""Measures the savings of storing and computing contexts once before serving: bytes, reading, training.

    python -m benchmarks.recd.savings

For trivago, the same rows are stored as plain Parquet (shuffled, and with requests together) and packed, read
into encoded batches, and trained on as random rows, as whole requests, and as whole requests that share their
contexts. Generated data with 1 to 50 candidates per request show from where each saving pays. Every
measurement is a separate process on one core; forms take turns (A, B, C, A, B, C), and figures are medians
over rounds. Writes docs/results/recd.json and prints the tables of docs/results/recd.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.command import DATA_ROOT, ROOT, answer_of, command_parser, save, saved, today
from benchmarks.recd.tables import markdown
from polyrec.cli.progress import ProgressBars
from polyrec.loadtest.machine import processor
from polyrec.models.data.encoded import encode
from polyrec.models.data.packed.packing import pack
from polyrec.models.data.reader import DataReader, open_data
from polyrec.models.data.split import TRAIN, fit_splitter
from polyrec.models.data.synthetic.generator import generate
from polyrec.models.schema.dedup.columns import columns_of
from polyrec.models.schema.dedup.grouping import Repeats
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.popularity import calibrate, load_calibration, save_calibration
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.row_order import epoch

SWEEP = (1, 2, 3, 5, 10, 25, 50)
SWEEP_ROWS = 150_000
STEPS = {"table": 200, "dhe": 40, "hybrid": 40}
SCHEMA = load_schema("trivago")

Found = dict[str, Any]


def prepare(source: Path, folder: Path) -> dict[str, Any]:
    """Writes every form of one data set and its calibration; returns the bytes of each form."""
    folder.mkdir(parents=True, exist_ok=True)
    reader = open_data(source, SCHEMA)
    save_calibration(calibrate(reader, SCHEMA, fit_splitter(reader, SCHEMA)), folder / "calibration")
    table = pq.read_table(source).replace_schema_metadata(None)
    order = np.random.default_rng(0).permutation(table.num_rows)
    _write(table.take(pa.array(order)), folder / "shuffled.parquet")
    _write(table, folder / "together.parquet")
    plain = open_data(folder / "together.parquet", SCHEMA)
    done = pack(plain, SCHEMA, folder / "packed", replace=True)
    forms = {"shuffled": "shuffled.parquet", "together": "together.parquet", "packed": "packed"}
    if "session_id" in table.column_names:
        pack(plain, SCHEMA, folder / "sessions", cluster_by="session_id", replace=True)
        # the same rows in default encodings: what of the saving is the encodings'
        (part,) = (folder / "packed").iterdir()
        _write(pq.read_table(part), folder / "dictionaries.parquet")
        forms |= {"packed, default encodings": "dictionaries.parquet", "packed by session": "sessions"}
    return {
        "rows": done.rows,
        "requests": done.requests,
        "repeats": [[list(g), f] for g, f in done.repeats],
        "bytes": {name: _bytes(folder / path) for name, path in forms.items()},
    }


def _write(table: pa.Table, path: Path) -> None:
    """Writes Parquet with common settings and zstd."""
    pq.write_table(table, path, compression="zstd")


def _bytes(path: Path) -> int:
    return sum(f.stat().st_size for f in ([path] if path.is_file() else path.iterdir()))


def measured(jobs: Mapping[str, Found], rounds: int, bar: Any) -> dict[str, Found]:
    """Runs each job `rounds` times in turns; returns medians, and spreads (largest - smallest) / median."""
    runs: dict[str, list[Found]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            runs[name].append(run(job))
            bar(1)
    out = {}
    for name, found in runs.items():
        rates = [f["rows"] / f["cpu_s"] for f in found]
        median = float(np.median(rates))
        dropped = ("cpu_s", "wall_s", "peak_bytes", "losses", "job")
        out[name] = {k: v for k, v in found[0].items() if k not in dropped}
        out[name] |= {
            "rows_per_s": median,
            "rows_per_s_wall": float(np.median([f["rows"] / f["wall_s"] for f in found])),
            "spread": (max(rates) - min(rates)) / median,
            "peak_bytes": float(np.median([f["peak_bytes"] for f in found])),
        }
    return out


def run(job: Found) -> Found:
    """Runs one job in a separate process."""
    command = [sys.executable, "-m", "benchmarks.recd.job", json.dumps(job)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}
    return answer_of(command, cwd=ROOT, env=environment)  # type: ignore[no-any-return]


def reading(folder: Path, core: int) -> dict[str, Found]:
    base = {"what": "read", "calibration": str(folder / "calibration"), "core": core}
    return {
        "shuffled": base | {"source": str(folder / "shuffled.parquet")},
        "together": base | {"source": str(folder / "together.parquet")},
        "packed": base | {"source": str(folder / "packed"), "share": True},
    }


def training(folder: Path, kind: str, core: int, **more: Any) -> dict[str, Found]:
    base = {
        "what": "train",
        "calibration": str(folder / "calibration"),
        "core": core,
        "kind": kind,
        "steps": STEPS[kind],
        **more,
    }
    plain = base | {"source": str(folder / "together.parquet")}
    jobs = {
        "rows": plain,
        "requests": plain | {"by_request": True},
        "shared": base | {"source": str(folder / "packed"), "by_request": True, "share": True},
    }
    jobs["shared, half"] = jobs["shared"] | {"batch_rows": 256}
    if kind != "table":
        jobs = {"rows, every lookup": plain | {"distinct": False}} | jobs
    return jobs


def largest_loss_difference(folder: Path, core: int) -> dict[str, float]:
    """Returns the largest difference of a step's loss between plain and shared contexts; no id is hidden."""
    out = {}
    for kind in STEPS:
        jobs = training(folder, kind, core, hide=0.0)
        one, two = (np.array(run(jobs[name])["losses"]) for name in ("requests", "shared"))
        out[kind] = float(np.abs(one - two).max())
    return out


def qualities(folder: Path, kinds: Sequence[str], seeds: int, core: int, bar: Any) -> dict[str, Any]:
    """Returns mean and deviation over seeds of the test metrics, by way to train."""
    out: dict[str, Any] = {}
    for kind in kinds:
        for name, job in training(folder, kind, core).items():
            if name == "rows, every lookup":
                continue
            found = []
            for seed in range(seeds):
                found.append(run(job | {"what": "quality", "seed": seed}))
                bar(1)
            out.setdefault(kind, {})[name] = {
                key: {
                    "mean": float(np.mean([f[key] for f in found])),
                    "deviation": float(np.std([f[key] for f in found], ddof=1)) if seeds > 1 else None,
                }
                for key in ("auc", "log_loss", "mrr")
            }
    return out


def groups(folder: Path, reader: DataReader) -> list[Found]:
    """Returns feature groups chosen on real batches of whole requests, with measured dedup factors."""
    found = load_calibration(folder / "calibration", SCHEMA)
    encoder = Encoder(SCHEMA, found.vocabularies, found.standards)
    with encode(reader, encoder, fit_splitter(reader, SCHEMA), (TRAIN,)) as data:
        drawn = epoch(data.select(TRAIN), data.group, 512, np.random.default_rng(0))
        batches = [columns_of(data.batch(next(drawn)), SCHEMA) for _ in range(16)]
    repeats = Repeats(batches)
    return [{"features": list(g), "factor": repeats.factor(frozenset(g))} for g in repeats.groups()]


def sweep(folder: Path, rounds: int, core: int, bars: ProgressBars) -> list[Found]:
    out = []
    for candidates in SWEEP:
        own = folder / f"sweep-{candidates}"
        own.mkdir(parents=True, exist_ok=True)
        source = own / "clicks.parquet"
        generate(source, SWEEP_ROWS, 0, candidates=candidates)
        about = prepare(source, own)
        read, train = reading(own, core), training(own, "table", core)
        del train["shared, half"]
        bar = bars.phase(f"{candidates} candidates", rounds * (len(read) + len(train)))
        out.append(
            {
                "candidates": candidates,
                **about,
                "reading": measured(read, rounds, bar),
                "training": measured(train, rounds, bar),
            }
        )
    return out


def machine() -> str:
    return f"{processor()}, {os.cpu_count()} cores, one used"


def measure(args: argparse.Namespace, bars: ProgressBars) -> Iterator[Found]:
    """Measures trivago's forms, the generated data, and the quality; yields each."""
    folder = args.folder / "trivago"
    found: Found = {"trivago": prepare(args.data, folder), "rounds": args.rounds}
    found["groups"] = groups(folder, open_data(args.data, SCHEMA))
    found["loss_difference"] = largest_loss_difference(folder, args.core)
    jobs = reading(folder, args.core)
    found["reading"] = measured(jobs, args.rounds, bars.phase("reading", args.rounds * len(jobs)))
    found["training"] = {}
    for kind in STEPS:
        jobs = training(folder, kind, args.core)
        bar = bars.phase(f"training {kind}", args.rounds * len(jobs))
        found["training"][kind] = measured(jobs, args.rounds, bar)
    yield found
    yield {"sweep": sweep(args.folder, args.rounds, args.core, bars)}
    bar = bars.phase("quality", 8 * args.seeds)
    quality = qualities(folder, ("table", "hybrid"), args.seeds, args.core, bar)
    yield {"quality": quality, "seeds": args.seeds}


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--data", type=Path, default=DATA_ROOT / "trivago" / "impressions.parquet")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "recd", help="where files go")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--core", type=int, default=1)
    parser.add_argument("--json", type=Path, default=ROOT / "docs" / "results" / "recd.json")
    args = parser.parse_args()
    result: Found = saved(args.json)
    with ProgressBars() as bars:
        for found in measure(args, bars):
            result |= found | {"machine": machine(), "date": today()}
            result["load_average"] = os.getloadavg()[1]
            save(args.json, result)
    print(markdown(result))


if __name__ == "__main__":
    main()
