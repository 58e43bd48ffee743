"""`polyrec pack`: stores each request's context once, and rows of one session together."""

from __future__ import annotations

import argparse

from polyrec.cli.train.data_arguments import add_data, add_on_malformed

EXAMPLE = "polyrec pack clicks.parquet --schema trivago --cluster-by session_id --out clicks.packed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="folder to write, usable as DATA of all commands"
    )
    parser.add_argument(
        "--cluster-by",
        metavar="COLUMN",
        help="column of a session, whose rows are stored together, in the order of the sessions' first rows "
        "(default: the request)",
    )
    parser.add_argument("--replace", action="store_true", help="replace the packed data at --out")
    add_on_malformed(parser)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Packs the data and prints the result. Raises PolyrecError."""
    import json
    from pathlib import Path

    from polyrec.cli.progress import ProgressBars
    from polyrec.models.data.packed.packing import pack
    from polyrec.models.data.parquet import parquet_files
    from polyrec.models.data.reader import open_data
    from polyrec.models.schema.schema import load_schema

    schema = load_schema(args.schema)
    reader = open_data(args.data, schema, args.on_malformed)
    with ProgressBars() as bars:
        done = pack(
            reader, schema, args.out, cluster_by=args.cluster_by, replace=args.replace, phase=bars.phase
        )
    before = sum(f.stat().st_size for f in parquet_files(Path(args.data)) if f.is_file())
    if args.json:
        result = {
            "out": str(done.path),
            "rows": done.rows,
            "requests": done.requests,
            "stored": done.stored,
            "bytes": done.bytes,
            "source_bytes": before,
            "shared": done.shared,
            "own": done.per_row,
            "left_out": done.left_out,
            "moved": done.moved,
            "malformed": reader.malformed,
            "repeats": [{"features": group, "factor": factor} for group, factor in done.repeats],
        }
        print(json.dumps(result))
        return 0
    print(
        f"{done.path}: {done.rows:,} rows as {done.stored:,} ({done.rows / done.stored:.1f} each); "
        f"{done.bytes:,} bytes, {done.bytes / before:.2f} of the {before:,} read"
    )
    print(f"stored once per request: {', '.join(done.shared)}")
    if done.stored > done.requests:
        print(
            f"the context varies within a {schema.group}: "
            f"{done.requests:,} requests took {done.stored:,} rows"
        )
    if done.moved:
        print(f"rows were moved to keep each {args.cluster_by or schema.group} together")
    if done.left_out:
        print(f"skipped lists that the schema does not name: {', '.join(done.left_out)}")
    if reader.malformed:
        print(f"{reader.malformed:,} malformed rows skipped")
    return 0
