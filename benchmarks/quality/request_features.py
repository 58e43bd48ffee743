"""Measures request features on trivago: quality, calibration for requests without a click, and cost.

    python -m benchmarks.quality.request_features --data ../shared/data/trivago/impressions.parquet \\
        --json docs/results/request_features.json

Trains each variant with the shipped recipe and every seed, and measures it on the test rows. For calibration,
half of the requests lose their clicked row, in training and test rows, and predicted clicks per request are
compared with observed ones. Cost is the median CPU time to decode and encode a request of about 23 candidates
in every form, with and without the features, alone and in batches; `--cost` measures only that. Prints
Markdown tables.

`--choose` instead compares the candidates among which the shipped schema and recipe were chosen (`CHOICES`),
without reading test rows: models of the preceding rows predict each of the last four tenths of the training
time.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.command import command_parser, save
from polyrec.loadtest.machine import processor
from polyrec.loadtest.traffic.queries import Queries, Query, read_rows
from polyrec.models.bundle.bundle import Bundle
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, TRAIN, fit_splitter
from polyrec.models.evaluation.metrics import Quality, evaluate
from polyrec.models.evaluation.predictions import predict_all
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.popularity import calibrate
from polyrec.models.schema.schema import Schema, Split, load_schema
from polyrec.models.training import source
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import default_recipe_file
from polyrec.models.training.trainer import History, predict, refit
from polyrec.models.training.unseen import lookups_to_hide, recipe_id_dropout
from polyrec.planner.plan import Limits
from polyrec.report.text import markdown_table
from polyrec.server.codecs.json_rows import JsonDecoder
from polyrec.server.codecs.oip_codec import OipCodec
from polyrec.server.codecs.rows import Rows, encode

METRICS = ("auc", "log_loss", "normalised_entropy", "mrr", "calibration")
ROUNDS, REQUESTS, ROWS = 20, 96, 20_000
SIZES = (20, 26)
BATCH = 8
"""Requests in a batch."""
QUINTILES = 5
TENTHS = (6, 7, 8, 9)
"""Tenths of the training time on which choices are measured."""
AMONG_SEEN = ("recent_listed", "recent_count", "price_to_recent", "price_to_last")
EARLIER = {"epochs": 2, "dense_lr": 1e-3, "final_lr": 0.0}


@dataclass(frozen=True, slots=True)
class RecipeChoice:
    """Differences from the shipped schema and recipe. without: omitted request features."""

    recipe: Mapping[str, Any] = field(default_factory=dict)
    shape: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()


CHOICES: dict[str, RecipeChoice] = {
    "shipped": RecipeChoice(),
    "steps of the net of .001": RecipeChoice({"dense_lr": 1e-3}),
    "and falling to 0": RecipeChoice({"dense_lr": 1e-3, "final_lr": 0.0}),
    "and without rows seen before": RecipeChoice({"dense_lr": 1e-3, "final_lr": 0.0}, without=AMONG_SEEN),
    "and two epochs (the earlier recipe)": RecipeChoice(EARLIER, without=AMONG_SEEN),
    "listwise .2": RecipeChoice({"listwise": 0.2}),
    "listwise .5": RecipeChoice({"listwise": 0.5}),
    "batches of 256": RecipeChoice({"batch_rows": 256}),
    "dropout .2": RecipeChoice({"dropout": 0.2}),
    "top 256-128": RecipeChoice(shape={"top": [256, 128]}),
}


def variants() -> dict[str, tuple[Schema, dict[str, Any]]]:
    """Returns schema and changes to the shipped recipe, by variant."""
    full = load_schema("trivago")
    ids = Schema.model_validate(full.model_dump() | {"request": ()})
    return {
        "with": (full, {}),
        "without": (ids, {}),
        "with, listwise loss": (full, {"listwise": 0.3}),
        "with, not calibrated": (full, {"calibrate": False}),
    }


def learn(data: Path, schema: Schema, changes: dict[str, Any], out: Path) -> Bundle:
    """Trains a bundle with trivago's recipe."""
    training = default_recipe_file(schema).with_recipe(changes)
    return Learner(open_data(data, schema), schema, training).learn(out)


def quality(data: Path, seeds: Sequence[int], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns test metrics of every variant, one entry per seed."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, (schema, changes) in variants().items():
        # the variants of the loss by one seed: they were chosen, or not, on validation rows
        for seed in seeds if name in ("with", "without") else seeds[:1]:
            bundle = learn(data, schema, {**changes, "seed": seed}, folder / f"{name} {seed}")
            metrics = {m: bundle.manifest.metrics["test"][m] for m in METRICS}
            found.setdefault(name, []).append(metrics)
            print(name, seed, metrics, flush=True)
    return found


def without_half_of_the_clicks(data: Path, out: Path) -> Path:
    """Writes the data without the clicked row of every other request."""
    table = pq.read_table(data)
    kept = (table["clicked"].to_numpy() == 0) | (table["request_id"].to_numpy() % 2 == 0)
    pq.write_table(table.filter(pa.array(kept)), out)
    return out


def choose(data: Path, seeds: Sequence[int], folder: Path) -> dict[str, dict[str, float]]:
    """Returns metrics of every choice, averaged over tenths of the training time and seeds."""
    found: dict[str, list[Quality]] = {name: [] for name in CHOICES}
    for tenth in TENTHS:
        path = before_and_in(tenth, data, folder / f"{tenth}.parquet")
        for name, choice in CHOICES.items():
            for seed in seeds:
                found[name].append(measured(path, choice, seed))
    means = {
        name: {m: float(np.mean([getattr(q, m) for q in of])) for m in METRICS} for name, of in found.items()
    }
    for name, of in means.items():
        cells = [f"{of[m]:.{5 if m == 'log_loss' else 4}f}" for m in ("log_loss", "auc", "mrr")]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    return means


def before_and_in(tenth: int, data: Path, out: Path) -> Path:
    """Writes the rows up to the end of a tenth of the training time. `part`: test inside it, train before."""
    table, schema = pq.read_table(data), load_schema("trivago")
    reader = open_data(data, schema)
    cuts = fit_splitter(reader, schema).cuts
    assert cuts is not None
    request = table[schema.split.columns[0]].to_numpy()
    known = np.unique(request[request <= cuts[1]])
    begin, end = (known[known.size * t // 10 - 1] for t in (tenth, tenth + 1))
    kept = request <= end
    part = pa.array(np.where(request[kept] <= begin, "train", "test"))
    pq.write_table(table.filter(pa.array(kept)).append_column("part", part), out)
    return out


def measured(path: Path, choice: RecipeChoice, seed: int) -> Quality:
    """Trains on the rows before a tenth for the recipe's epochs, and measures on its rows."""
    shipped = load_schema("trivago")
    request = tuple(r for r in shipped.request if r.name not in choice.without)
    split = Split(rule="column", columns=("part",))
    schema = Schema.model_validate(shipped.model_dump() | {"request": request, "split": split})
    training = (
        default_recipe_file(schema).with_recipe({**choice.recipe, "seed": seed}).with_shape(choice.shape)
    )
    learner, recipe = Learner(open_data(path, schema), schema, training), training.recipe
    splitter = fit_splitter(learner.reader, schema)
    encoder = learner.encoder_of(splitter, (TRAIN,))
    with learner.encoded(encoder, splitter, (TRAIN, TEST)) as data:
        model, rows = learner.initial_model(encoder), source.Rows(data, data.select(TRAIN))
        steps = recipe.steps_per_epoch(rows.size)
        hide = recipe_id_dropout(recipe, encoder, lookups_to_hide(recipe, encoder, rows), {})
        history = History((), recipe.epochs * steps, steps, recipe.starts_linear(rows.size))
        refit(model, rows, recipe, history, hide)
        of = data.select(TEST)
        assert data.group is not None
        return evaluate(predict(model, data, of), data.label[of], data.group[of])


def calibration(data: Path, folder: Path) -> dict[str, Any]:
    """Returns predicted and observed clicks per request, if half of the requests have none."""
    half = without_half_of_the_clicks(data, folder / "half.parquet")
    found: dict[str, Any] = {}
    for name, (schema, changes) in variants().items():
        if name == "without":
            continue
        bundle = learn(half, schema, changes, folder / f"half {name}")
        predictions = predict_all({name: bundle}, half, (TEST,))
        assert predictions.group is not None
        _, request = np.unique(predictions.group, return_inverse=True)
        predicted = np.bincount(request, predictions.probabilities[name])
        clicks = np.bincount(request, predictions.label)
        order = np.argsort(predicted)
        found[name] = {
            "ratio": float(predicted.sum() / clicks.sum()),
            "clicked": float((clicks > 0).mean()),
            "quintiles": [
                [float(predicted[part].mean()), float(clicks[part].mean())]
                for part in np.array_split(order, QUINTILES)
            ],
        }
        print(name, found[name], flush=True)
    return found


def cost(data: Path) -> dict[str, dict[str, list[float]]]:
    """Returns, by request form, microseconds a request `without` and `with` the features: [decoding, encoding
    alone, encoding in batches].
    """
    schemas = {"without": variants()["without"][0], "with": variants()["with"][0]}
    full = schemas["with"]
    reader = open_data(data, full)
    counted = calibrate(reader, full, fit_splitter(reader, full))
    table = read_rows(data, full, ROWS)
    forms: dict[str, dict[str, list[list[float]]]] = {}
    asks: list[tuple[str, str, Encoder, Callable[[Any], Rows], list[Any]]] = []
    for name, schema in schemas.items():
        encoder = Encoder(schema, counted.vocabularies, counted.standards)
        encoder.prepare()
        queries = Queries(table, schema, encoder)
        chosen = [
            queries[i]
            for i in np.flatnonzero((queries.sizes >= SIZES[0]) & (queries.sizes <= SIZES[1])).tolist()
        ]
        for form, decode in decoders(schema, encoder).items():
            bodies = [body_of(queries, form, query) for query in chosen[:REQUESTS]]
            asks.append((form, name, encoder, decode, bodies))
    for _ in range(ROUNDS):
        for form, name, encoder, decode, bodies in asks:
            times = forms.setdefault(form, {}).setdefault(name, [])
            for first in range(0, REQUESTS, BATCH):
                batch = []
                for body in bodies[first : first + BATCH]:
                    start = time.thread_time()
                    batch.append(decode(body))
                    decoded = time.thread_time()
                    batch[-1].encode(encoder)
                    times.append([decoded - start, time.thread_time() - decoded])
                start = time.thread_time()
                encode(batch, encoder)
                together = (time.thread_time() - start) / len(batch)
                for each in times[-len(batch) :]:
                    each.append(together)
    return {
        form: {name: [float(x) for x in np.median(times, axis=0) * 1e6] for name, times in of.items()}
        for form, of in forms.items()
    }


def body_of(queries: Queries, form: str, query: Query) -> tuple[bytes, int | None]:
    """Returns a body of one form, and the length of its JSON if binary tensors follow."""
    body, headers = getattr(queries, form)(query)
    return body, int(next(iter(headers.values()))) if headers else None


def decoders(schema: Schema, encoder: Encoder) -> dict[str, Callable[[Any], Rows]]:
    """Returns the decoder of each request form."""
    json_rows, tensors = JsonDecoder(schema, Limits()), OipCodec(schema, Limits(), encoder.vocabularies)
    return {
        "rank": lambda body: json_rows.rank(body[0]).rows,
        "predict": lambda body: json_rows.predict(body[0]),
        "infer_ranking": lambda body: tensors.decode(*body).rows,
        "infer": lambda body: tensors.decode(*body).rows,
    }


def report(found: dict[str, Any]) -> str:
    """Returns Markdown tables of all figures."""
    rows = []
    for name, runs in found["quality"].items():
        cells = []
        for metric in METRICS:
            x = np.array([run[metric] for run in runs])
            if metric == "normalised_entropy":
                x = 1 - x
            digits = 5 if metric == "log_loss" else 4
            cells.append(f"{x.mean():.{digits}f} ({x.min():.{digits}f}-{x.max():.{digits}f})")
        rows.append([name, *cells])
    lines = markdown_table(["", "AUC", "log-loss", "information gain", "MRR", "calibration"], rows)
    rows = [
        [name, f"{of['ratio']:.3f}", *(f"{p:.3f} / {c:.3f}" for p, c in of["quintiles"])]
        for name, of in found["calibration"].items()
    ]
    fifths = [f"fifth {i + 1}" for i in range(QUINTILES)]
    lines += ["", *markdown_table(["", "predicted / observed", *fifths], rows)]
    rows = []
    for form, of in found["cost"].items():
        pairs = zip(of["without"], of["with"], strict=True)
        rows.append([form, *(f"{us:.0f}" for pair in pairs for us in pair)])
    steps = ("decode", "encode alone", f"encode {BATCH} together")
    head = ["form", *(cell for step in steps for cell in (f"{step}, us: without", "with"))]
    return "\n".join([*lines, "", *markdown_table(head, rows)])


def main() -> None:
    """Runs the requested measurements and prints them."""
    parser = command_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--cost", action="store_true", help="measure the cost again, and keep the rest of --json"
    )
    parser.add_argument("--choose", action="store_true", help="compare choices on training rows instead")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.choose:
        with tempfile.TemporaryDirectory() as folder:
            choose(args.data, args.seeds[:2], Path(folder))
        return
    if args.cost:
        found = json.loads(args.json.read_text()) | {"cost": cost(args.data), "cost_machine": processor()}
        save(args.json, found)
        print(report(found))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "machine": processor(),
            "quality": quality(args.data, args.seeds, Path(folder)),
            "calibration": calibration(args.data, Path(folder)),
            "cost": cost(args.data),
        }
    save(args.json, found)
    print(report(found))


if __name__ == "__main__":
    main()
