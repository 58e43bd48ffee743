"""`polyrec materialize`: stores the vectors that a bundle computes."""

from __future__ import annotations

import argparse
import json

EXAMPLE = "polyrec materialize runs/dhe --rows 20000 --out runs/dhe-hot"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", help="folder of the bundle")
    parser.add_argument("--out", required=True, help="folder to write the new bundle to")
    parser.add_argument(
        "--rows", type=int, help="number of rows to store, the most accessed of all tables (default: all)"
    )
    parser.add_argument("--replace", action="store_true", help="replace the bundle at --out")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    import torch

    from polyrec.models.bundle.bundle import load_bundle, require_target, write_bundle
    from polyrec.models.bundle.derive import materialize
    from polyrec.models.errors import BundleError
    from polyrec.models.evaluation.feature_drift import keep_reference

    if args.rows is not None and args.rows < 0:
        raise BundleError(f"--rows {args.rows}: a number of rows cannot be negative")
    torch.set_num_threads(1)
    require_target(args.out, args.replace)
    bundle = load_bundle(args.bundle)
    model, representation = materialize(bundle, args.rows)
    derived = {"derived_from": bundle.manifest.version, "by": "materialize", "rows": args.rows}
    derived |= keep_reference(bundle.manifest.training)
    out = write_bundle(
        args.out,
        model,
        representation,
        bundle.encoder,
        bundle.manifest.metrics,
        derived,
        args.replace,
        bundle.manifest.activations,
    )
    result = {"bundle": str(out.path), "representation": out.name, "bytes": out.bytes, "was": bundle.bytes}
    if args.json:
        print(json.dumps(result))
    else:
        print(f"{out.path}: {out.name}, {out.bytes:,} bytes (was {bundle.name}, {bundle.bytes:,})")
    return 0
