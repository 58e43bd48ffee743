"""`polyrec calibrate`: counts accesses in the training rows, saves the popularity order of every table."""

from __future__ import annotations

import argparse

from polyrec.cli.data_arguments import add_data, add_on_malformed
from polyrec.loadtest.arguments import non_negative_int

HELP = "count accesses of each id and save the popularity order"
EXAMPLE = "polyrec calibrate clicks.parquet --schema trivago --out clicks.calibration"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    parser.add_argument("--out", required=True, metavar="FILE", help="file to write the calibration to")
    parser.add_argument(
        "--sample",
        type=float,
        metavar="SHARE",
        help="share of the training rows to count, in (0, 1] (default: all)",
    )
    parser.add_argument("--seed", type=non_negative_int, default=0, help="seed of the sample (default 0)")
    add_on_malformed(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Counts, saves and prints. Raises PolyrecError."""
    import json

    from tqdm import tqdm

    from polyrec.models.data.reader import open_data
    from polyrec.models.data.split import fit_splitter
    from polyrec.models.schema.popularity import calibrate, save_calibration, skew
    from polyrec.models.schema.schema import load_schema

    schema = load_schema(args.schema)
    reader = open_data(args.data, schema, args.on_malformed)
    splitter = fit_splitter(reader, schema)
    with tqdm(total=reader.rows_hint, unit=" rows", unit_scale=True, desc="calibrate", disable=None) as bar:
        found = calibrate(reader, schema, splitter, sample=args.sample, seed=args.seed, progress=bar.update)
    save_calibration(found, args.out)
    if args.json:
        result = {
            "out": args.out,
            "training_rows": found.rows,
            "sampled_rows": found.sampled_rows,
            "malformed": reader.malformed,
            "tables": {
                table: {
                    "rows": v.rows,
                    "accesses": int(v.counts.sum()),
                    "skew": {f"{share:.2f}": taken for share, taken in skew(v.counts).items()},
                }
                for table, v in found.vocabularies.items()
            },
        }
        print(json.dumps(result))
        return 0
    print(f"{'table':20} {'rows':>12} {'accesses':>14}   share of the hottest 1%     5%    10%")
    for table, v in found.vocabularies.items():
        shares = "  ".join(f"{taken:5.3f}" for taken in skew(v.counts).values())
        print(f"{table:20} {v.rows:12,} {int(v.counts.sum()):14,} {shares:>42}")
    print(f"order of {found.sampled_rows:,} of {found.rows:,} training rows -> {args.out}")
    if reader.malformed:
        print(f"{reader.malformed:,} malformed rows skipped")
    return 0
