"""Makes bundles of MP-Rec's four representations, to profile, plan and serve on a CPU and a GPU.

    python -m benchmarks.gpu.representations --folder /tmp/mprec

Bundles have the shape of the Kaggle model (2.0 M rows of 16; the paper's 33.8 M rows need more memory, not
more time per row), its DHE (1,024 hashes, 512-256) and random weights. So accuracies are not measured but
recalled from the paper, with select's assumed halfway; they are printed as options of `polyrec profile`.
benchmarks/gpu.sh profiles each bundle on each device, plans, and benches every policy on the plan.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.command import command_parser
from benchmarks.peers.models import MODELS, capped, write_model
from benchmarks.routing.mprec_machines import DECODER, HASHES, LARGEST
from benchmarks.routing.mprec_machines import MODELS as PUBLISHED
from polyrec.models.dlrm.representation import KINDS, Representation, RepresentationKind
from polyrec.models.embeddings.computed import Encoding

EXPONENT = 1.05
"""Exponent of the Zipf distribution of ids in requests."""
SMALL_ROWS = 20_000


def representation(
    kind: RepresentationKind, rows_of: dict[str, int], hidden: tuple[int, ...]
) -> Representation | None:
    """Returns the paper's representation of a kind; select computes the LARGEST tables. None stores all."""
    if kind == "table":
        return None
    by_size = sorted(rows_of, key=lambda table: rows_of[table])
    stored = by_size[:-LARGEST] if kind == "select" else []
    cuts = {table: rows_of[table] for table in stored}
    return Representation(kind=kind, encoding=Encoding(k=HASHES, hidden=hidden), cuts=cuts)


def make_bundles(
    folder: Path, rows: int | None, hidden: tuple[int, ...] = DECODER
) -> dict[RepresentationKind, Path]:
    """Writes the bundles that do not exist yet.

    rows: total rows of all tables; None: the Kaggle model's 2.0 M. hidden: widths of the decoders' layers.
    """
    model = MODELS["kaggle"]
    if rows is not None:
        model = replace(model, rows=rows)
    # a table also has rows for missing and unknown values
    sizes = {t: n + 2 for t, n in zip(model.schema.tables, capped(model.sizes, model.rows), strict=True)}
    bundles = {}
    for kind in KINDS:
        bundles[kind] = folder / kind
        if not bundles[kind].exists():
            write_model(model, bundles[kind], EXPONENT, representation(kind, sizes, hidden))
    return bundles


def accuracies() -> dict[RepresentationKind, float]:
    """Returns the paper's accuracies on Criteo Kaggle, as recalled; select's is assumed halfway."""
    known = PUBLISHED[0].accuracy
    halfway = (known["table"] + known["dhe"]) / 2
    return {kind: known.get(kind, halfway) for kind in KINDS}


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of the bundles")
    parser.add_argument("--small", action="store_true", help="small tables: no figures")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    bundles = make_bundles(args.folder, SMALL_ROWS if args.small else None)
    for kind, right in accuracies().items():
        print(f"--quality {bundles[kind]}={right:g}")


if __name__ == "__main__":
    main()
