"""Measures int8 scales (per row, and static), and torch with padded batches.

    python -m benchmarks.quality.int8_scales --quality trivago=runs/t --quality bookcrossing=runs/b

Times an ONNX Runtime session at 1, 23 and 270 rows with a Kaggle-size net (26 vectors of 16 and 13 numbers,
512-256-64 and 512-256, dot) and a small one. All graphs take turns in one run; figures are median CPU
milliseconds. `static` is for bundles with ranges (models/dlrm/activations.py). Torch, in fp32 and bf16, is
timed with small batches, unpadded and padded (models/dlrm/batch_invariance.py).

--quality DATA=BUNDLE measures log-loss and AUC of a bundle on its test rows, in batches of 270, with static
scales for several shares of larger inputs, determined on training rows; --only-quality omits the times. Data
are read from ../shared/data.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.command import DATA_ROOT, PUBLIC, command_parser, save, turn_ms
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.data.encoded import encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, TRAIN, fit_splitter
from polyrec.models.dlrm.activations import observe_activations
from polyrec.models.dlrm.context_once import ContextOnce
from polyrec.models.dlrm.dlrm import Architecture, DenseNet, Inputs
from polyrec.models.embeddings.stage import PerBlock
from polyrec.models.evaluation.metrics import evaluate
from polyrec.models.runtimes.buckets import predict_unbucketed
from polyrec.models.runtimes.kinds.onnx import OnnxRuntime, open_session
from polyrec.models.runtimes.kinds.torch import DTYPES, min_rows
from polyrec.models.runtimes.onnx_graph import plain_graph
from polyrec.models.schema.batch import F32
from polyrec.report.text import markdown_table

ROWS = (1, 23, 270)
BATCH_ROWS = 270
FORMS = ("fp32", "per row")
STATIC = "static"
SHARES = (0.0, 1e-5, 3e-5, 1e-4)
"""Shares of a layer's inputs that may exceed its range."""
NETS: dict[str, tuple[Architecture, PerBlock, PerBlock]] = {
    "Kaggle": (
        Architecture(bottom=(512, 256, 64), top=(512, 256), interaction="dot"),
        PerBlock(0, 13),
        PerBlock(0, 26),
    ),
    "small": (Architecture(bottom=(64,), top=(128, 64), interaction="dot"), PerBlock(0, 4), PerBlock(0, 8)),
}
"""Shape, dense features and vectors of context and candidate."""


def sessions(net: DenseNet) -> dict[str, ort.InferenceSession]:
    """Returns a session of each of FORMS."""
    graphs = {form: plain_graph(net, "fp32" if form == "fp32" else "int8") for form in FORMS}
    return {form: open_session(graph.SerializeToString(), "cpu") for form, graph in graphs.items()}


def static_session(net: DenseNet, largest: Mapping[str, float]) -> ort.InferenceSession:
    """Returns a session with static scales."""
    return open_session(plain_graph(net, "int8", largest).SerializeToString(), "cpu")


def timed(name: str, repeats: int) -> dict[str, dict[str, float]]:
    """Returns median ms by rows of a batch and form, measured in turns, and the largest error."""
    shape, dense, slots = NETS[name]
    torch.manual_seed(0)
    net = DenseNet(shape, dense, slots).eval()
    layers = [name for name, layer in net.named_modules() if isinstance(layer, nn.Linear)]
    # times do not depend on the ranges
    opened = {**sessions(net), STATIC: static_session(net, dict.fromkeys(layers, 8.0))}
    random = np.random.default_rng(0)
    found: dict[str, dict[str, float]] = {}
    for rows in ROWS:
        given = {
            "dense_candidate": random.standard_normal((rows, dense.candidate)).astype(np.float32),
            "candidate": (0.3 * random.standard_normal((rows, slots.candidate, shape.width))).astype(
                np.float32
            ),
        }
        runs = {form: partial(session.run, None, given) for form, session in opened.items()}
        found[str(rows)] = turn_ms(runs, repeats)
    said = {form: session.run(None, given)[0] for form, session in opened.items()}
    found["max error"] = {form: float(np.abs(p - said["fp32"]).max()) for form, p in said.items()}
    return found


def padded(name: str, repeats: int) -> dict[str, dict[str, float]]:
    """Returns ms of torch's dense net by precision and rows, for unpadded and padded batches."""
    shape, dense, slots = NETS[name]
    torch.manual_seed(0)
    cpu, found = torch.device("cpu"), {}
    for precision, dtype in DTYPES.items():
        net = ContextOnce(DenseNet(shape, dense, slots)).eval().to(dtype)
        padded_to = {"unpadded": 0, "padded": min_rows(net, dtype)}
        for rows in ROWS:
            numbers, vectors = (
                torch.randn(rows, dense.candidate),
                torch.randn(rows, slots.candidate, shape.width),
            )
            inputs = Inputs(numbers[:, :0], numbers, vectors[:, :0], vectors, None)
            runs = {
                form: partial(predict_unbucketed, net, inputs, cpu, dtype, least)
                for form, least in padded_to.items()
            }
            with torch.inference_mode():
                found[f"{precision}, {rows}"] = turn_ms(runs, repeats)
    return found


def quality(data: str, bundle: str, root: Path) -> dict[str, dict[str, float]]:
    """Returns, by form, log-loss and AUC on the test rows, and largest and mean difference from fp32."""
    loaded = load_bundle(bundle)
    schema = loaded.manifest.schema_
    reader = open_data(root / PUBLIC[data], schema)
    runtime = OnnxRuntime(loaded)
    opened = sessions(loaded.net())
    view = loaded.by_width()[-1]
    with encode(reader, loaded.encoder, fit_splitter(reader, schema)) as rows:
        for share in SHARES:
            seen = observe_activations(view.model(), rows.batch, rows.select(TRAIN), beyond=share)
            assert seen is not None
            opened[f"{STATIC}, {share:.0e} beyond"] = static_session(view.net(), seen.largest)
        parts: dict[str, list[F32]] = {form: [] for form in opened}
        chosen = rows.select(TEST)
        for start in range(0, chosen.size, BATCH_ROWS):
            inputs = runtime.embed(rows.batch(chosen[start : start + BATCH_ROWS]).exploded())[0]
            for form, session in opened.items():
                given = {i.name: np.asarray(getattr(inputs, i.name)) for i in session.get_inputs()}
                parts[form].append(session.run(None, given)[0])
        labels: NDArray[np.float32] = rows.label[chosen]
    said = {form: np.concatenate(p) for form, p in parts.items()}
    found = {}
    for form, p in said.items():
        q, apart = evaluate(p, labels), np.abs(p - said["fp32"])
        found[form] = {
            "log_loss": q.log_loss,
            "auc": q.auc,
            "max": float(apart.max()),
            "mean": float(apart.mean()),
        }
    return found


def main(argv: list[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=300, help="runs of each graph at each size")
    parser.add_argument("--only-quality", action="store_true", help="measure no times")
    parser.add_argument("--quality", action="append", default=[], metavar="DATA=BUNDLE")
    parser.add_argument("--data-root", type=Path, default=DATA_ROOT)
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    nets = {} if args.only_quality else NETS
    figures: dict[str, Any] = {"ms": {name: timed(name, args.repeats) for name in nets}, "quality": {}}
    forms = (*FORMS, STATIC)
    cells = []
    for name, sizes in figures["ms"].items():
        for rows, times in sizes.items():
            digits = ".0e" if rows == "max error" else ".3f"
            cells.append([f"{name}, {rows}", *(format(times[form], digits) for form in forms)])
    print(*markdown_table(["net, rows", *forms], cells), sep="\n")
    figures["torch_ms"] = {name: padded(name, args.repeats) for name in nets}
    cells = []
    for name, sizes in figures["torch_ms"].items():
        cells += [[f"{name}, {rows}", *(f"{t:.3f}" for t in times.values())] for rows, times in sizes.items()]
    print("", *markdown_table(["net, torch, rows", "unpadded", "padded"], cells), sep="\n")
    for given in args.quality:
        data, _, bundle = given.partition("=")
        figures["quality"][data] = quality(data, bundle, args.data_root)
        cells = [
            [form, f"{q['log_loss']:.6f}", f"{q['auc']:.6f}", f"{q['max']:.1e}", f"{q['mean']:.1e}"]
            for form, q in figures["quality"][data].items()
        ]
        head = [data, "log-loss", "AUC", "largest difference to fp32", "mean"]
        print("", *markdown_table(head, cells), sep="\n")
    save(args.json, figures)


if __name__ == "__main__":
    main()
