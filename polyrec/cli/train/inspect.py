"""`polyrec inspect`: describes a bundle, a profile, a plan or a machine."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic import BaseModel

    from polyrec.models.bundle.bundle import Bundle

EXAMPLE = "polyrec inspect runs/demo/table"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", help="folder of a bundle, or file of a profile, a plan or a machine (YAML)")
    parser.add_argument(
        "--vocabulary", metavar="TABLE", help="print id<TAB>value of every row of this table instead"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    if Path(args.path).is_file():
        return _file(args)
    from polyrec.models.bundle.bundle import load_bundle
    from polyrec.models.data.altered_values import AlteredValues
    from polyrec.models.dlrm.cost import flops
    from polyrec.models.schema.popularity import skew

    bundle = load_bundle(args.path)
    if args.vocabulary:
        return _vocabulary(bundle, args.vocabulary)
    manifest = bundle.manifest
    if args.json:
        print(manifest.model_dump_json(by_alias=True))
        return 0
    shape = manifest.architecture
    nested = f" (nested {', '.join(map(str, bundle.widths))})" if bundle.widths else ""
    print(f"{manifest.name} {bundle.name}, version {manifest.version}, made {manifest.created}")
    print(f"by Polyrec {manifest.code_version}; {bundle.bytes:,} bytes of rows and dense net")
    print(
        f"width {shape.width}{nested}, bottom {list(shape.bottom)}, "
        f"{shape.interaction}, top {list(shape.top)}; "
        f"{len(manifest.schema_.numbers)} dense and {len(manifest.schema_.slots)} categorical features"
    )
    for split, metrics in manifest.metrics.items():
        print(f"{split:>10}  " + "  ".join(f"{k} {v:.5g}" for k, v in metrics.items() if v is not None))
    for line in AlteredValues.of_training(manifest.training).warnings(manifest.schema_.categorical):
        print(f"data: {line}")
    for view in bundle.by_width() if bundle.widths else ():
        each = flops(view).total / 1e6
        print(f"{view.name:>10}  {each:.3f} MFLOP a row, {view.net_bytes:,} bytes of dense net")
    print(f"\n{'table':<16}{'rows':>12}{'accesses':>14}   hottest 1% / 5% / 10%   features")
    for table, features in manifest.schema_.tables.items():
        v = bundle.encoder.vocabularies[table]
        shares = " / ".join(f"{s:5.3f}" for s in skew(v.counts).values())
        names = ", ".join(f.name for f in features)
        print(f"{table:<16}{v.rows:>12,}{int(v.counts.sum()):>14,}   {shares}   {names}")
    return 0


def _vocabulary(bundle: Bundle, table: str) -> int:
    from polyrec.models.errors import BundleError

    v = bundle.encoder.vocabularies.get(table)
    if v is None:
        raise BundleError(f"no table '{table}'; there are {', '.join(bundle.encoder.vocabularies)}")
    values = range(v.size) if v.values is None else v.values.to_pylist()
    for i, value in enumerate(values):
        print(f"{i}\t{'(reserved)' if value is None else value}")
    if v.specials:
        print(f"{v.missing_id}\t(missing)\n{v.oov_id}\t(out of vocabulary)")
    return 0


def _file(args: argparse.Namespace) -> int:
    """Describes a file by its type: machines are YAML; profiles and plans differ in their keys."""
    from polyrec.models.errors import BundleError
    from polyrec.planner.devices import load_machine
    from polyrec.planner.plan import load_plan
    from polyrec.planner.profile import load_profile

    if args.vocabulary:
        raise BundleError(f"'{args.path}' is a file; --vocabulary needs the folder of a bundle")
    if Path(args.path).suffix in (".yaml", ".yml"):
        from polyrec.report.profile.summary import machine_lines

        machine = load_machine(args.path)
        return _show(args, machine, lambda: machine_lines(machine))
    if _is_profile(Path(args.path)):
        from polyrec.report.profile.summary import profile_lines

        profile = load_profile(args.path)
        return _show(args, profile, lambda: profile_lines(profile))
    from polyrec.planner.deployment.explain import page

    plan = load_plan(args.path)
    return _show(args, plan, lambda: page(plan))


def _is_profile(file: Path) -> bool:
    """Returns whether a JSON file has a profile's key; unreadable files are reported when they are loaded."""
    from polyrec.models.files import MAX_BYTES, read_regular

    try:
        raw = json.loads(read_regular(file, MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(raw, dict) and "machine" in raw


def _show(args: argparse.Namespace, model: BaseModel, lines: Callable[[], Sequence[str]]) -> int:
    print(model.model_dump_json(exclude_none=True) if args.json else "\n".join(lines()))
    return 0
