"""Compares shapes of DHE on validation rows; writes docs/results/dhe-sweep.md and .json.

    python -m benchmarks.quality.dhe_sweep --runs /work/data/dhe-sweep

Every configuration of `CONFIGURATIONS` is trained for one epoch on the training rows of a fixed random sample
of a data set's rows, with the default recipe at width 16, and scored on the sample's validation rows; the
test rows are not read. Stored tables of several widths and a hybrid are trained the same way for comparison.
With a sample and a single epoch, a configuration takes about a minute on one core. Results are stored under
--runs after each configuration and not computed again. Runs in one process and one thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.command import DATA_ROOT, ROOT, command_parser, save, saved
from benchmarks.quality.recipes import SETS, some_rows
from benchmarks.quality.representations import machine
from benchmarks.quality.tables import write_figures
from polyrec.models.allocator import retain_freed_memory
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TRAIN, VALIDATION, fit_splitter
from polyrec.models.dlrm.cost import net_flops
from polyrec.models.dlrm.dlrm import DLRM
from polyrec.models.dlrm.representation import RepresentationKind
from polyrec.models.evaluation.metrics import log_loss
from polyrec.models.schema.batch import F32
from polyrec.models.training.pipeline import Learner, best_check
from polyrec.models.training.recipe import RecipeFile
from polyrec.models.training.source import Rows
from polyrec.report.text import markdown_table

PAGE = ROOT / "docs/results/dhe-sweep.md"
DATA = ("ml1m", "bookcrossing")
ROWS = 80_000
"""Rows of a data set's sample: training, validation and (unread) test rows together."""
PUBLISHED = {"k": 1024, "hidden": [512, 256], "activation": "mish", "batch_norm": True}
"""DHE of the published size: MP-Rec's 1024-512-256, with the DHE paper's activation and norms."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One training. encoding: DHE's encoding. width: vector width. recipe: changed keys of the recipe."""

    kind: RepresentationKind = "dhe"
    encoding: Mapping[str, Any] = field(default_factory=dict)
    width: int = 16
    recipe: Mapping[str, Any] = field(default_factory=dict)

    @property
    def training(self) -> RecipeFile:
        """The recipe of this configuration."""
        default = RecipeFile().model_dump()
        default["architecture"]["width"] = self.width
        default["encoding"] |= self.encoding
        default["recipe"] |= {"epochs": 1, "checks_per_epoch": 2, **self.recipe}
        return RecipeFile.model_validate(default)


def _dhe(changes: Mapping[str, Any], **recipe: Any) -> Configuration:
    return Configuration(encoding={**PUBLISHED, **changes}, recipe=recipe)


SMALL = {"hidden": [128]}
"""Base of the variations, a decoder that trains in seconds: 1024-128, the default's shape."""
RELU = {"activation": "relu"}
PLAIN = {"batch_norm": False}
CONFIGURATIONS: dict[str, Configuration] = {
    "table w16": Configuration("table"),
    "1024-512-256 mish norm": _dhe({}),
    # activation and norm
    "1024-128 mish norm": _dhe(SMALL),
    "1024-128 mish": _dhe({**SMALL, **PLAIN}),
    "1024-128 relu norm": _dhe({**SMALL, **RELU}),
    "1024-128 relu": _dhe({**SMALL, **RELU, **PLAIN}),
    # hashes
    "32-256 mish norm": _dhe({"k": 32, "hidden": [256]}),
    "128-256 mish norm": _dhe({"k": 128, "hidden": [256]}),
    "512-256 mish norm": _dhe({"k": 512, "hidden": [256]}),
    "1024-256 mish norm": _dhe({"hidden": [256]}),
    "2048-256 mish norm": _dhe({"k": 2048, "hidden": [256]}),
    # width
    "1024-32 mish norm": _dhe({"hidden": [32]}),
    "1024-64 mish norm": _dhe({"hidden": [64]}),
    # depth
    "1024-128-128 mish norm": _dhe({"hidden": [128] * 2}),
    "1024-128-128-128 mish norm": _dhe({"hidden": [128] * 3}),
    "1024-128-128-128-128 mish norm": _dhe({"hidden": [128] * 4}),
    "128-128-128 mish norm": _dhe({"k": 128, "hidden": [128] * 2}),
    # what DHE is to beat
    "table w4": Configuration("table", width=4),
    "table w8": Configuration("table", width=8),
    "table w32": Configuration("table", width=32),
    # step size of the decoders and the dense net
    "1024-128 mish norm, dense_lr .004": _dhe(SMALL, dense_lr=4e-3),
    "1024-128 relu, dense_lr .004": _dhe({**SMALL, **RELU, **PLAIN}, dense_lr=4e-3),
    "table w16, dense_lr .004": Configuration("table", recipe={"dense_lr": 4e-3}),
    # codes
    "1024-128 mish norm gaussian": _dhe({**SMALL, "transform": "gaussian"}),
    # narrower decoders for tables of few rows
    "1024-512-256 mish norm, by rows": _dhe({"by_rows": True}),
    "1024-128 mish norm, by rows": _dhe({**SMALL, "by_rows": True}),
    # how far apart equal configurations are
    "1024-128 mish norm, seed 1": _dhe(SMALL, seed=1),
    "table w16, seed 1": Configuration("table", recipe={"seed": 1}),
    "hybrid 1024-128 mish norm": Configuration("hybrid", {**PUBLISHED, **SMALL}),
    "1024-512-256 relu": _dhe({**RELU, **PLAIN}),
    "table w64": Configuration("table", width=64),
    "1024-128 mish norm, seed 2": _dhe(SMALL, seed=2),
    "table w16, seed 2": Configuration("table", recipe={"seed": 2}),
}


@contextmanager
def encoded_sample(
    name: str, data_root: Path, runs: Path
) -> Iterator[Callable[[Configuration], dict[str, Any]]]:
    """Opens the sample of a data set; returns a function that trains a configuration on it."""
    data = SETS[name]
    path, schema = runs / f"{name}-{ROWS}.parquet", data.schema()
    if not path.exists():
        some_rows(ROWS)(data_root / data.source, path)
    learner = Learner(open_data(path, schema), schema, RecipeFile())
    splitter = fit_splitter(learner.reader, schema, learner.phase("split", None))
    encoder = learner.encoder_of(splitter, (TRAIN,))
    with learner.encoded(encoder, splitter, (TRAIN, VALIDATION)) as rows:
        training, validation = rows.select(TRAIN), rows.select(VALIDATION)

        def run(configuration: Configuration) -> dict[str, Any]:
            own = replace(learner, training=configuration.training, kind=configuration.kind)
            begin = time.perf_counter()
            fitted = own.fit(encoder, Rows(rows, training), Rows(rows, validation))
            seconds = time.perf_counter() - begin
            best = best_check(fitted.history)
            return {
                "information": information(best.log_loss, rows.label[validation]),
                "log_loss": best.log_loss,
                "auc": best.auc,
                "epoch": best.epoch,
                **cost(fitted.model, len(schema.numbers)),
                "rows": {"training": int(training.size), "validation": int(validation.size)},
                "seconds": round(seconds, 1),
            }

        yield run


def information(loss: float, label: F32) -> float:
    """Returns 1 - NE: one minus a log-loss divided by the entropy of the base rate."""
    return 1 - loss / log_loss(np.full_like(label, label.mean()), label)


def cost(model: DLRM, dense: int) -> dict[str, float]:
    """Returns operations per row and bytes of a model, without decoders' norms, which export folds."""
    stage = model.stage
    flops = net_flops(model.net.shape, dense, sum(stage.slots), sum(stage.flops))
    stored = sum(p.numel() for p in stage.sparse_parameters())
    decoders = sum(
        p.numel()
        for name, p in model.named_parameters()
        if name.startswith("stage.") and "decoders." in name and "norms" not in name
    )
    return {"mflop": flops.total / 1e6, "rows_bytes": 4 * stored, "decoders_bytes": 4 * decoders}


def tables(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the figures as a Markdown table, by descending mean information gain; omits what was not run.

    found: figures of `encoded_sample`'s function, by data set and configuration.
    """
    names = [name for name in DATA if name in found]
    done = [label for label in CONFIGURATIONS if all(label in found[name] for name in names)]
    done.sort(key=lambda label: -float(np.mean([found[name][label]["information"] for name in names])))
    what = [SETS[name].what for name in names]
    head = ["configuration"] + [f"{w}: {x}" for x in ("1 - NE", "AUC", "MFLOP a row", "MB") for w in what]
    cells = []
    for label in done:
        own = [found[name][label] for name in names]
        row = [label, *(f"{f['information']:.4f}" for f in own), *(f"{f['auc']:.4f}" for f in own)]
        row += [f"{f['mflop']:.2f}" for f in own]
        row += [f"{(f['rows_bytes'] + f['decoders_bytes']) / 1e6:.2f}" for f in own]
        cells.append(row)
    rows = {w: found[n][done[0]]["rows"] for w, n in zip(what, names, strict=True)} if done else {}
    counted = "; ".join(f"{w}: {r['training']:,} and {r['validation']:,}" for w, r in rows.items())
    missing = [label for label in CONFIGURATIONS if label not in done]
    lines = [*markdown_table(head, cells), "", f"Training and validation rows: {counted}."]
    lines += ["", "Not run for lack of time: " + ", ".join(missing) + "."] if missing else []
    return "\n".join(lines)


def write_page(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes docs/results/dhe-sweep.json and the figures of the page."""
    write_figures(PAGE, {"rows": ROWS, "data": found}, tables(found), machine())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--data-root", type=Path, default=DATA_ROOT)
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument(
        "--runs", type=Path, default=ROOT / "runs" / "dhe-sweep", help="where results are kept"
    )
    args = parser.parse_args(arguments)
    retain_freed_memory()
    torch.set_num_threads(1)
    args.runs.mkdir(parents=True, exist_ok=True)
    kept = args.runs / "results.json"
    found: dict[str, dict[str, Any]] = saved(kept)
    wanted = [(label, name) for label in CONFIGURATIONS for name in args.data]
    missing = [(label, name) for label, name in wanted if label not in found.setdefault(name, {})]
    with ExitStack() as stack:
        train = {
            name: stack.enter_context(encoded_sample(name, args.data_root, args.runs))
            for name in {name for _, name in missing}
        }
        for label, name in missing:
            found[name][label] = train[name](CONFIGURATIONS[label])
            save(kept, found)
            print(name, label, found[name][label], file=sys.stderr, flush=True)
    if set(args.data) == set(DATA):
        write_page(found)


if __name__ == "__main__":
    main()
