"""Plots quality over measured cost of all representations; writes docs/results/quality-cost.md.

    python -m benchmarks.quality.quality_cost --runs /work/data/quality-cost

On three data sets, stored tables of several widths, one nested training of the same widths, dhe, select and
hybrid are trained with one seed for one epoch on a fixed sample of the rows, because all rows would take
hours. ONNX Runtime then predicts the sample's test rows, and executes one batch of each model in turns; the
minimum time counts, because other work on the core only adds to it. Bundles and figures are stored under
--runs, so that an interrupted run can be resumed. Runs in one process and one thread. --report writes the
page from the stored figures.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from benchmarks.command import DATA_ROOT, ROOT, command_parser, save
from benchmarks.quality.dhe_sweep import PUBLISHED
from benchmarks.quality.kept import kept
from benchmarks.quality.recipes import SETS, first_rows, some_rows
from benchmarks.quality.representations import machine
from benchmarks.quality.tables import write_figures
from polyrec.models.allocator import retain_freed_memory
from polyrec.models.amounts import size
from polyrec.models.bundle.bundle import load_bundle
from polyrec.models.data.encoded import encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, fit_splitter
from polyrec.models.dlrm.cost import flops
from polyrec.models.dlrm.dlrm import Architecture
from polyrec.models.dlrm.representation import RepresentationKind
from polyrec.models.evaluation.metrics import log_loss, row_losses
from polyrec.models.evaluation.predictions import predict_all
from polyrec.models.runtimes import open_runtime
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import RecipeFile
from polyrec.models.training.search import mean_and_error
from polyrec.report.chart import LIGHT, Theme, add_legend, log_axis, new_figure, png, style_axes
from polyrec.report.text import markdown_table

PAGE = ROOT / "docs/results/quality-cost.md"
ROWS = 60_000
BATCH = 256
"""Rows of the timed batch: two to ten ranking requests."""
SAMPLES: dict[str, Callable[[Path, Path], None]] = {
    "trivago": first_rows(ROWS),
    "bookcrossing": some_rows(ROWS),
    "ml1m": some_rows(ROWS),
}
TURNS = 40
DEVIATIONS = 1.96
"""Half-width of a 95% interval in standard errors."""
EQUAL = {"bytes": "bytes", "mflop": "operations", "us_per_row": "measured time"}
WIDTHS = (4, 8, 16, 32)
WIDEST = Architecture(width=WIDTHS[-1])
COMPUTED_WIDTH = 16
ONE_EPOCH = {"epochs": 1, "checks_per_epoch": 1}


@dataclass(frozen=True, slots=True)
class Model:
    """A model to train: its kind, and changes to the default recipe."""

    kind: RepresentationKind
    architecture: Architecture
    encoding: Mapping[str, Any] | None = None

    @property
    def training(self) -> RecipeFile:
        """The recipe."""
        changes = {} if self.encoding is None else {"encoding": self.encoding}
        return RecipeFile.model_validate(
            {"architecture": self.architecture.model_dump(), "recipe": ONE_EPOCH, **changes}
        )


COMPUTED = WIDEST.head(COMPUTED_WIDTH)
"""Dense net of computed representations, which is that of the table of the same width."""
MODELS: dict[str, Model] = {
    **{f"table-w{w}": Model("table", WIDEST.head(w)) for w in WIDTHS},
    "nested": Model("table", WIDEST.model_copy(update={"widths": WIDTHS})),
    "dhe": Model("dhe", COMPUTED),
    "select": Model("select", COMPUTED),
    "hybrid": Model("hybrid", COMPUTED),
    "dhe-published": Model("dhe", COMPUTED, PUBLISHED),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """A path of the plot. us_per_row: in a batch of BATCH rows. bytes: of rows, decoders and net."""

    name: str
    line: str
    information: float
    us_per_row: float
    bytes: int
    mflop: float


@dataclass(frozen=True, slots=True)
class Against:
    """A computed path compared with the stored table of the same cost. table: '' if all tables cost more.

    value, low, high: information gain of the computed path minus the table's, with its 95% interval.
    """

    name: str
    equal: str
    table: str
    value: float = 0.0
    low: float = 0.0
    high: float = 0.0


def sample(name: str, data_root: Path, folder: Path) -> Path:
    """Returns the file of a data set's sample, written if it does not exist."""
    path = folder / "rows.parquet"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        SAMPLES[name](data_root / SETS[name].source, path)
    return path


def train(name: str, label: str, path: Path, folder: Path) -> None:
    """Trains a bundle of a data set if it does not exist."""
    schema, model = SETS[name].schema(), MODELS[label]
    if kept(folder / label) is not None:
        return
    begin = time.perf_counter()
    learner = Learner(open_data(path, schema), schema, model.training, model.kind, baselines=False)
    bundle = learner.learn(folder / label, replace=True)
    gain, took = bundle.test_metrics["information"], time.perf_counter() - begin
    print(f"{name} {label}: information {gain:.4f}, {took:.0f} s", file=sys.stderr, flush=True)


def measure(name: str, path: Path, folder: Path) -> dict[str, Any]:
    """Returns the paths of a data set and their comparisons; JSON-able."""
    schema = SETS[name].schema()
    views = {
        label if view.width is None else f"{label} w{view.width}": view
        for label in MODELS
        for view in load_bundle(folder / label).by_width()
    }
    made = predict_all(views, path, (TEST,), runtime="onnx")
    losses = {label: row_losses(p, made.label) for label, p in made.probabilities.items()}
    entropy = log_loss(np.full_like(made.label, made.label.mean()), made.label)
    reader = open_data(path, schema)
    seconds = dict.fromkeys(views, np.inf)
    encoder = next(iter(views.values())).encoder
    with encode(reader, encoder, fit_splitter(reader, schema), (TEST,)) as rows:
        batch = rows.batch(np.arange(BATCH))
        runtimes = {label: open_runtime("onnx", view) for label, view in views.items()}
        for _ in range(TURNS):
            for label, runtime in runtimes.items():
                begin = time.perf_counter()
                runtime.predict(batch)
                seconds[label] = min(seconds[label], time.perf_counter() - begin)
    found = [
        Measured(
            label.replace("-w", " w"),
            label.replace("-w", " w").partition(" ")[0],
            float(1 - losses[label].mean() / entropy),
            1e6 * seconds[label] / BATCH,
            view.bytes,
            flops(view).total / 1e6,
        )
        for label, view in views.items()
    ]
    own = dict(zip((m.name for m in found), losses.values(), strict=True))

    def gain(name: str, table: str) -> tuple[float, float]:
        mean, error = mean_and_error((own[table] - own[name]) / entropy, made.group)
        return mean, error

    against = against_tables(found, gain)
    return {"paths": [asdict(m) for m in found], "against": [asdict(a) for a in against]}


def against_tables(
    found: Sequence[Measured], gain: Callable[[str, str], tuple[float, float]]
) -> list[Against]:
    """Compares each computed path with the widest table that takes no more of each cost.

    gain: of a path over a table, and its standard error.
    """
    tables = [m for m in found if m.line == "table"]
    out = []
    for m in (m for m in found if m.line not in ("table", "nested")):
        for equal in EQUAL:
            fitting = [t for t in tables if getattr(t, equal) <= getattr(m, equal)]
            if not fitting:
                out.append(Against(m.name, equal, ""))
                continue
            value, error = gain(m.name, fitting[-1].name)
            low, high = value - DEVIATIONS * error, value + DEVIATIONS * error
            out.append(Against(m.name, equal, fitting[-1].name, value, low, high))
    return out


def draw(found: Mapping[str, Sequence[Measured]], theme: Theme = LIGHT) -> Figure:
    """Draws a panel per data set: information gain over the measured time per row."""
    figure = new_figure(4.4 * len(found), 4.2, theme, "Quality and measured cost of a row")
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    lines = list(dict.fromkeys(label.partition("-w")[0] for label in MODELS))
    for axes, (name, measured) in zip(panels, found.items(), strict=True):
        style_axes(axes, theme, SETS[name].what, f"us a row, batches of {BATCH}", "information gain, 1 - NE")
        for i, line in enumerate(lines):
            own = [m for m in measured if m.line == line]
            x, y = [m.us_per_row for m in own], [m.information for m in own]
            axes.plot(x, y, marker="o", ms=5, linewidth=1.4, color=theme.color(i), label=line)
            for m in own:
                width = m.name.rpartition(" ")[2] if " " in m.name else ""
                axes.annotate(
                    width, (m.us_per_row, m.information), (3, 4), textcoords="offset points", size=8,
                    color=theme.faint,
                )  # fmt: skip
        cost = [m.us_per_row for m in measured]
        log_axis(axes, "x", min(cost) / 1.3, max(cost) * 1.4)
    handles, labels = panels[0].get_legend_handles_labels()
    add_legend(figure, theme, handles=handles, labels=labels, loc="outside lower left", ncols=len(lines))
    return figure


def tables(found: Mapping[str, Sequence[Measured]], compared: Mapping[str, Sequence[Against]]) -> str:
    """Returns the page's figures as Markdown."""
    lines: list[str] = []
    for name, measured in found.items():
        lines += ["", f"## {SETS[name].what}", ""]
        lines += markdown_table(
            ["path", "information gain", "us a row", "size", "MFLOP a row"],
            [
                [m.name, f"{m.information:.4f}", f"{m.us_per_row:.2f}", size(m.bytes), f"{m.mflop:.3f}"]
                for m in measured
            ],
        )
        lines += ["", "Against the widest stored table that takes no more:", ""]
        own = {(a.name, a.equal): a for a in compared[name]}
        lines += markdown_table(
            ["path", *(f"of {e}" for e in EQUAL.values())],
            [
                [label, *(_difference(own[label, e]) for e in EQUAL)]
                for label in dict.fromkeys(a.name for a in compared[name])
            ],
        )
    return "\n".join(lines[1:])


def _difference(a: Against) -> str:
    if not a.table:
        return "every table takes more"
    shown = "" if a.low > 0 or a.high < 0 else ", noise"
    return f"{a.table}: {a.value:+.4f} ({a.low:+.4f} to {a.high:+.4f}{shown})"


def read(
    results: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, list[Measured]], dict[str, list[Against]]]:
    """Returns the paths and comparisons of stored results, by data set."""
    found = {name: [Measured(**m) for m in r["paths"]] for name, r in results.items()}
    return found, {name: [Against(**a) for a in r["against"]] for name, r in results.items()}


def report(names: Iterable[str], runs: Path) -> None:
    """Writes the page, its plot and its JSON from the measured figures."""
    results = {n: json.loads(f.read_text()) for n in names if (f := runs / n / "measured.json").exists()}
    found, compared = read(results)
    PAGE.with_suffix(".png").write_bytes(png(draw(found)))
    what = f"Samples of {ROWS:,} rows, one seed, one epoch; {machine()}"
    write_figures(PAGE, {"rows": ROWS, "batch": BATCH, "data": results}, tables(found, compared), what)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--data-root", type=Path, default=DATA_ROOT)
    parser.add_argument("--data", nargs="+", choices=list(SAMPLES), default=list(SAMPLES))
    parser.add_argument(
        "--runs", type=Path, default=ROOT / "runs" / "quality-cost", help="where bundles are kept"
    )
    parser.add_argument("--report", action="store_true", help="only write the page from what was measured")
    args = parser.parse_args(arguments)
    retain_freed_memory()
    torch.set_num_threads(1)
    if not args.report:
        files = {name: sample(name, args.data_root, args.runs / name) for name in args.data}
        for label in MODELS:
            for name, path in files.items():
                train(name, label, path, args.runs / name)
        for name, path in files.items():
            file = args.runs / name / "measured.json"
            if not file.exists():
                save(file, measure(name, path, args.runs / name))
                print(name, file.read_text(), file=sys.stderr, flush=True)
    report(args.data, args.runs)


if __name__ == "__main__":
    main()
