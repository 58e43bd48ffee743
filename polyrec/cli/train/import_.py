"""`polyrec import`: turns a checkpoint of another program into a bundle."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyrec.models.schema.schema import Pooling

EXAMPLE = "polyrec import dlrm dlrm.pt --out runs/imported"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    formats = parser.add_subparsers(dest="format", required=True, metavar="FORMAT")
    dlrm = formats.add_parser(
        "dlrm",
        help="file written by dlrm_s_pytorch.py --save-model, or its state dict",
        epilog=f"example: {EXAMPLE}",
    )
    _common(dlrm, "dlrm")
    dlrm.add_argument(
        "--interaction",
        choices=["dot", "cat"],
        default="dot",
        help="the model's --arch-interaction-op (default dot)",
    )
    dlrm.add_argument(
        "--interact-itself", action="store_true", help="the model had --arch-interaction-itself"
    )
    torchrec = formats.add_parser(
        "torchrec",
        help="state dict of TorchRec's DLRM or DLRM_DCN",
        epilog="example: polyrec import torchrec dlrm_dcn.pt --out runs/dcn",
    )
    _common(torchrec, "torchrec")
    torchrec.add_argument(
        "--tables",
        metavar="NAME,...",
        help="table of each feature in the model's order, with a shared one repeated "
        "(default: every table once, in the order of the file)",
    )
    torchrec.add_argument(
        "--pooling",
        default="sum",
        metavar="sum|mean|TABLE=mean,...",
        help="pooling of all tables, or of some (default sum)",
    )
    torchrec.add_argument(
        "--quantized",
        choices=["int8", "int4"],
        help="precision of quantized tables, if the row size in bytes fits both int8 and int4",
    )


def _common(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="file written by torch.save")
    parser.add_argument("--out", required=True, help="folder to write the bundle to")
    parser.add_argument("--replace", action="store_true", help="replace the bundle at --out")
    parser.add_argument("--name", default=name, help=f"name of the bundle's schema (default {name})")
    parser.add_argument(
        "--single-valued", action="store_true", help="one id per feature and row, instead of a list"
    )
    parser.add_argument("--max-length", type=int, default=256, help="most ids in one list (default 256)")
    parser.add_argument(
        "--schema", help="schema file with names, roles, transforms and poolings of the same features"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Converts the checkpoint and prints the result. Raises PolyrecError."""
    import json

    import torch

    from polyrec.cli.progress import ProgressBars
    from polyrec.models.bundle.bundle import require_target
    from polyrec.models.importers.dlrm import read_dlrm
    from polyrec.models.importers.foreign_model import write_foreign_model
    from polyrec.models.importers.torchrec import read_torchrec
    from polyrec.models.schema.schema import load_schema

    schema = load_schema(args.schema) if args.schema else None
    require_target(args.out, args.replace)
    torch.set_num_threads(1)
    if args.format == "dlrm":
        parts = read_dlrm(args.checkpoint, args.interaction, args.interact_itself)
    else:
        tables = args.tables.split(",") if args.tables else ()
        parts = read_torchrec(args.checkpoint, tables, args.quantized)
    with ProgressBars() as bars:
        bundle = write_foreign_model(
            parts,
            args.out,
            args.name,
            single_valued=args.single_valued,
            pooling="sum" if args.format == "dlrm" else _poolings(args.pooling),
            max_length=args.max_length,
            schema=schema,
            replace=args.replace,
            progress=bars.phase("copy tables", sum(t.rows for t in parts.tables.values())),
        )
    schema = bundle.manifest.schema_
    features = {
        f.name: {"from": source, "rows": f.cardinality}
        for f, source in zip(schema.categorical, parts.features, strict=True)
    }
    interaction = parts.interaction + (" with itself" if parts.itself else "")
    if args.json:
        result = {"bundle": str(bundle.path), "version": bundle.manifest.version, "bytes": bundle.bytes}
        shape = {"dense": len(schema.dense), "interaction": interaction, "features": features}
        print(json.dumps(result | shape))
        return 0
    name = bundle.manifest.name
    print(f"{bundle.path}: {name} {bundle.name}, version {bundle.manifest.version}, {bundle.bytes:,} bytes")
    print(
        f"{len(schema.dense)} dense features {schema.dense[0].name}..., {interaction} interaction of ", end=""
    )
    print(f"vectors of {bundle.manifest.architecture.width}; each id below its table's rows:")
    wide = max(8, *map(len, features))
    for feature, of in features.items():
        print(f"{feature:>{wide}}  {of['from']:30} {of['rows']:>14,} rows")
    return 0


def _poolings(text: str) -> Pooling | dict[str, Pooling]:
    """Parses --pooling. Raises PolyrecError."""
    from polyrec.models.errors import PolyrecError

    found: dict[str, Pooling] = {}
    for part in text.split(","):
        table, _, pooling = part.rpartition("=")
        if pooling not in ("sum", "mean") or (not table and part != text):
            raise PolyrecError(f"--pooling '{text}': write sum, mean, or like t_user=mean,t_item=sum")
        if not table:
            return pooling  # type: ignore[return-value]
        found[table] = pooling  # type: ignore[assignment]
    return found
