"""`polyrec inspect`: what a bundle or a plan is."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from models.bundle import Bundle

HELP = "show what a bundle or a plan file is"
EXAMPLE = "polyrec inspect runs/demo/table"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", help="folder of a bundle, or a plan file")
    parser.add_argument(
        "--vocabulary", metavar="TABLE", help="print id<TAB>value of every row of a bundle's table instead"
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(args: argparse.Namespace) -> int:
    if Path(args.path).is_file():
        return _plan(args)
    from models.bundle import load_bundle
    from models.popularity import skew

    bundle = load_bundle(args.path)
    if args.vocabulary:
        return _vocabulary(bundle, args.vocabulary)
    manifest = bundle.manifest
    if args.json:
        print(manifest.model_dump_json(by_alias=True))
        return 0
    shape = manifest.architecture
    print(f"{manifest.name} {bundle.name}, version {manifest.version}, made {manifest.created}")
    print(f"by Polyrec {manifest.code_version}; {bundle.bytes:,} bytes of rows and dense net")
    print(
        f"width {shape.width}, bottom {list(shape.bottom)}, {shape.interaction}, top {list(shape.top)}; "
        f"{len(manifest.schema_.dense)} dense and {len(manifest.schema_.slots)} categorical features"
    )
    for split, metrics in manifest.metrics.items():
        print(f"{split:>10}  " + "  ".join(f"{k} {v:.5g}" for k, v in metrics.items() if v is not None))
    print(f"\n{'table':<16}{'rows':>12}{'accesses':>14}   hottest 1% / 5% / 10%   features")
    for table, features in manifest.schema_.tables.items():
        v = bundle.encoder.vocabularies[table]
        shares = " / ".join(f"{s:5.3f}" for s in skew(v.counts).values())
        names = ", ".join(f.name for f in features)
        print(f"{table:<16}{v.rows:>12,}{int(v.counts.sum()):>14,}   {shares}   {names}")
    return 0


def _vocabulary(bundle: Bundle, table: str) -> int:
    from models.errors import BundleError

    v = bundle.encoder.vocabularies.get(table)
    if v is None:
        raise BundleError(f"no table '{table}'; there are {', '.join(bundle.encoder.vocabularies)}")
    values = range(v.size) if v.values is None else v.values.to_pylist()
    for i, value in enumerate(values):
        print(f"{i}\t{value}")
    if v.specials:
        print(f"{v.missing_id}\t(missing)\n{v.oov_id}\t(out of vocabulary)")
    return 0


def _plan(args: argparse.Namespace) -> int:
    from planner.plan import load_plan

    plan = load_plan(args.path)
    if args.json:
        print(plan.model_dump_json())
        return 0
    print(f"plan, default budget {plan.default_budget_ms:g} ms")
    for path in plan.paths:
        print(f"  {path.name:<24} {path.runtime} on {path.device}, bundle {path.bundle}")
    print("limits " + json.dumps(plan.limits.model_dump()))
    return 0
