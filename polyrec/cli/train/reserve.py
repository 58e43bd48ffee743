"""`polyrec reserve`: adds empty rows to a bundle, for values that are added while it serves."""

from __future__ import annotations

import argparse
import json

EXAMPLE = "polyrec reserve runs/table --rows item=10000 --out runs/table-reserved"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", help="folder of the bundle")
    parser.add_argument("--out", required=True, help="folder to write the new bundle to")
    parser.add_argument(
        "--rows",
        required=True,
        action="append",
        metavar="TABLE=N",
        help="number of rows to reserve in a table; repeat for others",
    )
    parser.add_argument("--replace", action="store_true", help="replace the bundle at --out")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    import torch

    from polyrec.models.bundle.bundle import load_bundle, require_target, write_bundle
    from polyrec.models.bundle.reserve import reserve
    from polyrec.models.evaluation.feature_drift import keep_reference

    rows = _rows(args.rows)
    torch.set_num_threads(1)
    require_target(args.out, args.replace)
    bundle = load_bundle(args.bundle)
    model, encoder = reserve(bundle, rows)
    manifest = bundle.manifest
    derived = {"derived_from": manifest.version, "by": "reserve", "rows": rows}
    derived |= keep_reference(manifest.training)
    out = write_bundle(
        args.out,
        model,
        manifest.representation,
        encoder,
        manifest.metrics,
        derived,
        args.replace,
        manifest.activations,
    )
    if args.json:
        result = {"bundle": str(out.path), "reserved": rows, "bytes": out.bytes, "was": bundle.bytes}
        print(json.dumps(result))
    else:
        each = ", ".join(f"{n:,} in {table}" for table, n in rows.items())
        print(f"{out.path}: reserved rows: {each}; {out.bytes:,} bytes (was {bundle.bytes:,})")
    return 0


def _rows(given: list[str]) -> dict[str, int]:
    """Parses TABLE=N arguments. Raises BundleError."""
    from polyrec.models.errors import BundleError

    rows = {}
    for argument in given:
        table, _, number = argument.rpartition("=")
        if not table or not number.isdecimal() or not 0 < int(number) <= 2**31:
            raise BundleError(f"--rows {argument}: give TABLE=N, such as item=1000")
        if table in rows:
            raise BundleError(f"--rows {argument}: table '{table}' is named twice")
        rows[table] = int(number)
    return rows
