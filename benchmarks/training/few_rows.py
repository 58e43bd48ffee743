"""Compares the default recipe with the baselines on few rows; writes docs/results/few-rows.md.

    python -m benchmarks.training.few_rows

The data sets are small samples of public data (random rows; for trivago, consecutive rows) and generated sets
with one difficulty each: clicks independent of all features, three clicks per thousand rows, additive effects
of ids (for which logistic regression is the true model), many uninformative columns, test items that do not
occur in training, and long lists. Figures are normalized entropy (NE; lower is better, and above 1 a constant
would be better) and AUC, on test rows.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.command import DATA_ROOT, PUBLIC, ROOT, command_parser
from benchmarks.quality.representations import machine
from polyrec.loadtest.arguments import positive_int
from polyrec.models.data.reader import open_data
from polyrec.models.errors import DataError
from polyrec.models.schema.batch import F64, I64
from polyrec.models.schema.schema import Schema, load_schema
from polyrec.models.training.baselines import CONSTANT, LOGISTIC
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import RecipeFile
from polyrec.report.text import markdown_table

GENERATED = {
    "noise": "random clicks",
    "rare": "3 clicks per 1,000 rows",
    "linear": "additive effects of ids and numbers",
    "wide": "50 id columns, 5 of them informative",
    "unseen": "new items in the test rows",
    "history": "lists of up to 100 items, tastes by inner products",
}
MARGIN = 0.005
Columns = Mapping[str, I64 | F64 | pa.Array]


def generated(kind: str, rows: int, seed: int, path: Path) -> Schema:
    """Writes a generated set and returns its schema."""
    random = np.random.default_rng([seed, rows])
    columns, logit = _features(kind, rows, random)
    click = random.random(rows) < 1 / (1 + np.exp(-logit))
    table = pa.table({**columns, "key": np.arange(rows) + seed * rows, "click": click.astype(np.int8)})
    pq.write_table(table, path)
    ids = [{"name": name, "type": "integer"} for name in columns if name[0] in "uic"]
    lists = [{"name": "list", "table": "item", "type": "integer", "pooling": "mean", "max_length": 100}]
    return Schema.model_validate(
        {
            "name": kind,
            "categorical": ids + lists * ("list" in columns),
            "dense": [{"name": n, "transform": ["standardise"]} for n in columns if n.startswith("x")],
            "label": {"column": "click"},
            "split": {
                "rule": "hash",
                "columns": ["item" if kind == "unseen" else "key"],
                "train": 0.8,
                "validation": 0.1,
            },
        }
    )


def _features(kind: str, rows: int, random: np.random.Generator) -> tuple[Columns, F64]:
    """Returns the features (ids u..., i..., c..., numbers x..., lists) and the log-odds of a click."""
    users, items = max(rows // 20, 5), max(rows // 50, 5)
    if kind == "wide":
        codes = random.integers(0, 30, (rows, 50))
        weight = random.normal(size=(5, 30))
        effects = sum(weight[j][codes[:, j]] for j in range(5))
        return {f"c{j}": codes[:, j] for j in range(50)}, np.asarray(effects - 1.5, np.float64)
    if kind == "noise":
        items = users = max(rows // 5, 5)
    elif kind == "unseen":
        items, users = max(rows // 8, 5), max(rows // 10, 5)
    elif kind == "history":
        items, users = 500, max(rows // 15, 5)
    user = random.integers(0, users, rows)
    item = (items * random.random(rows) ** 2).astype(np.int64)
    columns: dict[str, I64 | F64 | pa.Array] = {"user": user, "item": item}
    of_user, of_item = random.normal(size=users), random.normal(size=items)
    if kind == "noise":
        return columns | {"x": random.normal(size=rows)}, np.full(rows, math.log(0.3 / 0.7))
    if kind == "rare":
        x = random.normal(size=rows)
        return columns | {"x": x}, -6.5 + of_item[item] + 0.7 * x
    if kind == "linear":
        x = random.normal(size=(rows, 2))
        logit = -1 + of_user[user] + of_item[item] + x @ np.array([0.5, -0.5])
        return columns | {"x0": x[:, 0], "x1": x[:, 1]}, logit
    if kind == "unseen":
        category = random.integers(0, 20, items)
        logit = -1 + random.normal(size=20)[category[item]] + 1.5 * of_item[item] + 0.7 * of_user[user]
        return columns | {"category": category[item]}, logit
    taste, kinds = random.normal(size=(users, 4)), random.normal(size=(items, 4))
    seen: dict[int, list[int]] = {}
    lists = []
    for u, i in zip(user.tolist(), item.tolist(), strict=True):
        own = seen.setdefault(u, [])
        lists.append(own[-100:])
        own.append(i)
    return columns | {"list": pa.array(lists, pa.list_(pa.int64()))}, 0.8 * (taste[user] * kinds[item]).sum(
        1
    ) - 0.5


def public(name: str, rows: int, seed: int, path: Path, root: Path) -> Schema:
    """Writes some rows of a public set and returns its schema."""
    table = pq.read_table(root / PUBLIC[name])
    random = np.random.default_rng([seed, rows])
    if name == "trivago":
        found = table.slice(int(random.integers(0, table.num_rows - rows)), rows)
    else:
        found = table.take(np.sort(random.choice(table.num_rows, rows, replace=False)))
    pq.write_table(found, path)
    return load_schema(name)


def measured(name: str, rows: int, seed: int, folder: Path, root: Path) -> dict[str, tuple[float, float]]:
    """Trains once; returns NE and AUC by model, nan where the test rows have one class."""
    path = folder / "rows.parquet"
    schema = public(name, rows, seed, path, root) if name in PUBLIC else generated(name, rows, seed, path)
    learner = Learner(open_data(path, schema), schema, RecipeFile().with_recipe({"seed": seed}))
    metrics = learner.learn(folder / "bundle", replace=True).manifest.metrics
    return {
        model: tuple(float(metrics[of][key] or math.nan) for key in ("normalised_entropy", "auc"))  # type: ignore[misc]
        for model, of in ((CONSTANT, CONSTANT), (LOGISTIC, LOGISTIC), ("default", "test"))
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--data-root", type=Path, default=DATA_ROOT)
    parser.add_argument("--rows", type=positive_int, nargs="+", default=[300, 2000, 10_000])
    parser.add_argument("--seeds", type=positive_int, default=3, help="trainings of each set (default 3)")
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", metavar="DIR")
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    lines = [
        "# Results: few rows",
        "",
        *(__doc__ or "").split("\n\n", 2)[2].strip().splitlines(),
        f"Each figure is the mean of {args.seeds} trainings that differ in rows and seed, or of fewer where",
        "rows have too few clicks to train or test on. Written by",
        "",
        "```bash",
        " ".join(["python -m benchmarks.training.few_rows", *(arguments or sys.argv[1:])]),
        "```",
        "",
        f"on {machine()}.",
        "",
    ]
    cells = []
    with tempfile.TemporaryDirectory() as folder:
        for rows in args.rows:
            for name in (*GENERATED, *PUBLIC):
                found = []
                for seed in range(args.first_seed, args.first_seed + args.seeds):
                    try:
                        one = measured(name, rows, seed, Path(folder), args.data_root)
                    except DataError as e:
                        print(f"{name} {rows} seed {seed}: {e}", file=sys.stderr)
                        continue
                    if not math.isnan(one["default"][0]):
                        found.append([one[m] for m in (CONSTANT, LOGISTIC, "default")])
                if not found:
                    continue
                mean = np.mean(found, axis=0)
                worse = sum(f[2][0] > f[0][0] + MARGIN for f in found)
                what = GENERATED.get(name, name)
                entropy, auc = ([f"{x:.3f}" for x in column] for column in mean.T)
                cells.append([f"{rows:,}", what, *entropy, f"{worse} of {len(found)}", *auc[1:]])
                print(*cells[-1], sep=", ", file=sys.stderr, flush=True)
    head = ["rows", "set", "NE: constant", "logistic", "default"]
    head += [f"default worse than constant by over {MARGIN}", "AUC: logistic", "default"]
    text = "\n".join([*lines, *markdown_table(head, cells)]) + "\n"
    print(text)
    (args.out / "few-rows.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
