"""`polyrec evaluate`: a bundle and data in, quality out."""

from __future__ import annotations

import argparse
import json

HELP = "measure a bundle's quality on data"
EXAMPLE = "polyrec evaluate runs/table --data clicks.parquet --json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", help="folder of the bundle")
    parser.add_argument("--data", required=True, help="Parquet file or folder, or Criteo TSV[.gz]")
    parser.add_argument(
        "--split",
        choices=["train", "validation", "test", "all"],
        default="test",
        help="rows to use, by the schema's split rule (default test)",
    )
    parser.add_argument("--runtime", choices=["torch", "onnx"], default="torch")
    parser.add_argument("--device", default="cpu", help="device of the runtime (default cpu)")
    parser.add_argument("--predictions", help="also write probabilities to this .npy file")
    parser.add_argument(
        "--on-malformed", choices=["fatal", "count"], default="fatal", help="what a malformed line does"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    import numpy as np
    import torch

    from models.bundle import load_bundle
    from models.data.encoded import encode
    from models.data.reader import open_data
    from models.data.split import NAMES, split_of
    from models.errors import DataError
    from models.evaluation import evaluate
    from models.runtimes import open_runtime, predict_rows
    from polyrec.progress import Bars

    torch.set_num_threads(1)
    bundle = load_bundle(args.bundle)
    schema = bundle.manifest.schema_
    reader = open_data(args.data, schema, args.on_malformed)
    which = tuple(range(len(NAMES))) if args.split == "all" else (NAMES.index(args.split),)
    runtime = open_runtime(args.runtime, bundle, args.device)
    with Bars() as bars:
        splitter = split_of(reader, schema, bars.phase("split", reader.rows_hint))
        progress = bars.phase("encode", reader.rows_hint)
        with encode(reader, bundle.encoder, splitter, which, progress=progress) as data:
            probabilities = predict_rows(runtime, data, bars.phase("predict", data.rows))
            quality = evaluate(probabilities, data.label, data.group)
    if args.predictions:
        try:
            np.save(args.predictions, probabilities)
        except OSError as e:
            raise DataError(f"cannot write '{args.predictions}': {e}") from None
    if args.json:
        print(json.dumps({"bundle": args.bundle, "split": args.split, **quality.as_dict()}))
    else:
        for key, value in quality.as_dict().items():
            if value is not None:
                print(f"{key:>20}  {value:,}" if isinstance(value, int) else f"{key:>20}  {value:.6f}")
    return 0
