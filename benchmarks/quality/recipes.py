"""Compares the default recipe with baselines on all data sets; writes docs/results/recipes.md.

    python -m benchmarks.quality.recipes

Data sets: the public ones, the generated clicks of the demo, and small subsets of the public ones with few
rows, many unseen items and long histories. Models: a constant, logistic regression, the default recipe of
commit bd14473, the set's shipped recipe, if any, and the default. With --search 5m, also the recipe that a
search of this duration chooses. Runs in one process and one thread. Results are stored in --runs and not
computed again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.command import DATA_ROOT, PUBLIC, ROOT, command_parser, save, saved, timestamp
from benchmarks.quality.representations import machine
from polyrec.cli.progress import ProgressBars
from polyrec.loadtest.arguments import duration
from polyrec.models.allocator import retain_freed_memory
from polyrec.models.data.reader import open_data
from polyrec.models.data.synthetic.generator import generate
from polyrec.models.schema.schema import Categorical, Schema, Split, load_schema
from polyrec.models.training.baselines import CONSTANT, LOGISTIC
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import RecipeFile, load_recipe_file
from polyrec.models.training.search import search_recipe
from polyrec.report.text import markdown_table

OLD = RecipeFile.model_validate(
    {
        "architecture": {"interaction": "dot", "top": [128, 64]},
        "recipe": {
            "batch_rows": 1024,
            "by_request": False,
            "calibrate": False,
            "sparse_lr": 0.05,
            "final_lr": 0.0,
            "warm_up": 0.05,
            "hide": 0.0,
            "average": 0.0,
            "checks_per_epoch": 4,
            "patience": 4,
        },
    }
)
"""The default recipe of bd14473."""
HISTORY = Categorical(name="history", role="context", table="item", pooling="mean", max_length=100)


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set to train on.

    source: path of the public file below the data root; '' if the set is generated. make: writes the set's
    file, unless it is the source itself. recipe: name of the shipped recipe, if any.
    """

    what: str
    source: str
    schema: Callable[[], Schema]
    make: Callable[[Path, Path], object] | None = None
    recipe: str | None = None


def first_rows(count: int) -> Callable[[Path, Path], None]:
    """Returns a function that writes the first rows of a file."""
    return lambda source, target: pq.write_table(pq.read_table(source).slice(0, count), target)


def some_rows(count: int) -> Callable[[Path, Path], None]:
    """Returns a function that writes random rows of a file, in order."""

    def write(source: Path, target: Path) -> None:
        table = pq.read_table(source)
        rows = np.sort(np.random.default_rng(0).choice(table.num_rows, count, replace=False))
        pq.write_table(table.take(rows), target)

    return write


def histories(source: Path, target: Path) -> None:
    """Writes all rows of random users, about 30,000, each with up to 100 items that the user rated before."""
    table = pq.read_table(source)
    users = table["user_id"].to_pylist()
    rated = Counter(users)
    order = sorted(rated)
    np.random.default_rng(0).shuffle(order)
    last = int(np.searchsorted(np.cumsum([rated[u] for u in order]), 30_000))
    table = table.filter(pa.array(np.isin(users, order[: last + 1])))
    before: dict[str, list[str]] = {}
    lists = []
    for user, item in zip(table["user_id"].to_pylist(), table["item"].to_pylist(), strict=True):
        own = before.setdefault(user, [])
        lists.append(own[-100:])
        own.append(item)
    pq.write_table(table.append_column("history", pa.array(lists, pa.list_(pa.string()))), target)


def with_new_items() -> Schema:
    """Returns the schema of MovieLens with histories, split by item, so that all test items are new."""
    schema = load_schema("ml1m")
    split = Split(rule="hash", columns=("item",), train=0.8, validation=0.15)
    return schema.model_copy(update={"categorical": (*schema.categorical, HISTORY), "split": split})


TRIVAGO, BOOKS, MOVIES = (PUBLIC[name] for name in ("trivago", "bookcrossing", "ml1m"))
SETS: dict[str, DataSet] = {
    "criteo-10k": DataSet("Criteo, 10,000 rows", "criteo/train-10k.tsv", lambda: load_schema("criteo")),
    "trivago-20k": DataSet(
        "trivago, the first 20,000 rows", TRIVAGO, lambda: load_schema("trivago"), first_rows(20_000)
    ),
    "bookcrossing-30k": DataSet(
        "Book-Crossing, 30,000 random rows", BOOKS, lambda: load_schema("bookcrossing"), some_rows(30_000)
    ),
    "ml1m-new-items": DataSet(
        "ML-1M, 150 users with histories, new items only", MOVIES, with_new_items, histories
    ),
    "generated": DataSet(
        "the demo's clicks, 300,000 rows",
        "",
        lambda: load_schema("trivago"),
        lambda _, to: generate(to, 300_000),
        "trivago",
    ),
    "trivago": DataSet("trivago", TRIVAGO, lambda: load_schema("trivago"), recipe="trivago"),
    "ml1m": DataSet("ML-1M", MOVIES, lambda: load_schema("ml1m")),
    "bookcrossing": DataSet(
        "Book-Crossing", BOOKS, lambda: load_schema("bookcrossing"), recipe="bookcrossing"
    ),
}
LAST = ["default", "search", "shipped"]
INTRODUCTION = """\
Compares the default recipe on each data set with a constant prediction (the base rate), a logistic regression
on ids, the default recipe of commit bd14473 ("old default"), the recipe that a search chooses, and the recipe
shipped for the set, if there is one. Figures are measured on test rows, with one seed. The baselines are
trained on the same rows with the same early stopping. Shipped recipes are trained again on training and
validation rows. [Quality](../quality.md) describes the default. Written by
"""
FIGURES = ("auc", "log_loss", "normalised_entropy")


def measured(name: str, args: argparse.Namespace, found: dict[str, Any]) -> dict[str, Any]:
    """Trains the recipes on one set that `found` lacks; returns the results as plain data for JSON."""
    data, schema = SETS[name], SETS[name].schema()
    path = args.data_root / data.source
    if data.make:
        path, source = args.runs / f"{name}.parquet", path
        if not path.exists():
            data.make(source, path)
    recipes = {"old default": OLD, "default": RecipeFile()}
    if data.recipe:
        recipes["shipped"] = load_recipe_file(data.recipe)
    found = {"what": data.what, "models": {}} | found
    with ProgressBars() as bars:
        learner = Learner(
            open_data(path, schema), schema, RecipeFile(), phase=bars.phase, progress=bars.training
        )
        if args.search and "search" not in found:
            search = search_recipe(learner, args.search)
            recipes["search"] = search.training
            found["search"] = search.record() | {"seconds": args.search}
        for label, training in recipes.items():
            if label in found["models"]:
                continue
            seeded = training.with_recipe({"seed": args.seed})
            begin = time.perf_counter()
            bundle = replace(learner, training=seeded).learn(args.runs / "bundle", replace=True)
            metrics = bundle.manifest.metrics
            found["models"][label] = metrics["test"] | {
                "seconds": round(time.perf_counter() - begin, 1),
                "epochs": metrics["validation"]["epoch"],
                "recipe": seeded.model_dump(mode="json"),
            }
            print(name, label, {k: round(metrics["test"][k] or 0, 4) for k in FIGURES}, file=sys.stderr)
            if label == "default":
                found["models"] |= {name: metrics[name] for name in (CONSTANT, LOGISTIC)}
                found["unseen"] = bundle.manifest.training["unseen"]
                found["rows"] = {"test": metrics["test"]["rows"]}
    return found


def markdown(results: Mapping[str, Any]) -> str:
    """Returns the page. results: of `measured`, by set."""
    sets = results["sets"]
    models = next(iter(sets.values()))["models"]
    columns = [CONSTANT, LOGISTIC, *(c for c in models if c not in (CONSTANT, LOGISTIC, *LAST)), *LAST]
    lines = [
        "# Results: recipes",
        "",
        *INTRODUCTION.splitlines(),
        "",
        "```bash",
        results["command"],
        "```",
        "",
        f"on {results['machine']}; {results['made']}.",
    ]
    for figure, head in (
        ("normalised_entropy", "Normalized entropy (log-loss over that of the base rate; lower is better)"),
        ("auc", "AUC"),
    ):
        rows = []
        for found in sets.values():
            values = [found["models"].get(c, {}).get(figure) for c in columns]
            best = (min if figure == "normalised_entropy" else max)(v for v in values if v is not None)
            cells = ["" if v is None else f"**{v:.4f}**" if v == best else f"{v:.4f}" for v in values]
            rows.append([found["what"], *cells])
        lines += ["", f"## {head}", "", *markdown_table(["set", *columns], rows)]
    rows = []
    for found in sets.values():
        own = found["models"]["default"]
        hidden = ", ".join(f"{k} {v:.2f}" for k, v in found["unseen"].items() if v >= 0.1) or "under .1"
        counted = [f"{own['rows']:,}", f"{own['epochs']:.2f}", f"{own['seconds']:.0f}"]
        rows.append([found["what"], *counted, hidden])
    lines += ["", "## Hidden ids and training time of the default", ""]
    lines += markdown_table(
        ["set", "test rows", "epochs to best", "seconds", "share of lookups hidden"], rows
    )
    searched = {k: v["search"] for k, v in sets.items() if "search" in v}
    if searched:
        rows = []
        for name, search in searched.items():
            done = [t for t in search["trials"] if t["status"] == "done"]
            chosen = next(t for t in search["trials"] if t["candidate"] == search["chosen"])["changes"]
            text = ", ".join(f"{k} {v}" for part in chosen.values() for k, v in part.items()) or "none"
            counted = [f"{search['seconds']:.0f}", f"{search['candidates']}", f"{len(done)}"]
            rows.append([sets[name]["what"], *counted, text])
        lines += ["", "## Recipes chosen by the search", ""]
        lines += markdown_table(["set", "seconds", "candidates", "trainings", "changes"], rows)
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--data-root", type=Path, default=DATA_ROOT)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--search", type=duration, help="also search for a recipe on each set, for this time")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "recipes", help="where results are kept")
    args = parser.parse_args(arguments)
    retain_freed_memory()
    torch.set_num_threads(1)
    args.runs.mkdir(parents=True, exist_ok=True)
    sets: dict[str, Any] = {}
    for name in args.sets:
        kept = args.runs / f"{name}.json"
        sets[name] = measured(name, args, saved(kept))
        save(kept, sets[name])
    results = {
        "command": " ".join(["python -m benchmarks.quality.recipes", *(arguments or sys.argv[1:])]),
        "machine": machine(),
        "made": timestamp(),
        "sets": sets,
    }
    text = markdown(results)
    print(text)
    if list(sets) == list(SETS):
        (ROOT / "docs" / "results" / "recipes.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
