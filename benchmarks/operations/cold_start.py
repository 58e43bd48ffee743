"""Measures quality on candidates that training never saw, with and without a feed of new rows.

    python -m benchmarks.operations.cold_start --data impressions.parquet --out cold-start.json

Requests are split by time. A model is trained on the first part, gets reserved rows in its item table, and is
served. A warm start continues from the model on the second part; the server gets only the rows of items that
the model lacks, as an update with `add`. The server ranks the last part before and after that update. Figures
are for the candidates not seen in training, for those of them that the feed gave a row, and for all
candidates. Intervals are from a paired bootstrap of requests.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.command import command_parser, save
from benchmarks.operations.update_feed import plan_of
from benchmarks.operations.written_log import request_starts
from polyrec.loadtest.machine import machine
from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.models.bundle.reserve import reserve
from polyrec.models.data.reader import open_data
from polyrec.models.embeddings.table import TableStage
from polyrec.models.evaluation.comparison import Metric, compare
from polyrec.models.schema.batch import F32
from polyrec.models.schema.schema import Schema, load_schema
from polyrec.models.tiers.updates.update import TableUpdate
from polyrec.models.tiers.updates.update_file import encode_update
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import default_recipe_file
from polyrec.models.training.warm.start import WarmStart
from polyrec.server.child import start

TOKEN = "cold start benchmark"
ITEM = "item"
METRICS: tuple[Metric, ...] = ("information", "auc")


def requests_of(table: pa.Table, schema: Schema) -> Iterator[tuple[slice, bytes]]:
    """Yields (rows, body of /v1/rank) of each request of a table, whose requests are contiguous."""
    starts = request_starts(table, schema).tolist()
    for begin, end in pairwise([*starts, table.num_rows]):
        some = table.slice(begin, end - begin)
        context = some.select(schema.context.names).slice(0, 1).to_pylist()[0]
        body = {"context": context, "candidates": some.select(schema.candidate.names).to_pydict()}
        yield slice(begin, end), json.dumps(body).encode()


def served_scores(url: str, table: pa.Table, schema: Schema) -> F32:
    """Returns the probability of each row, float32 [rows], that a server answers."""
    scores = np.full(table.num_rows, np.nan, np.float32)
    with httpx.Client(base_url=url, timeout=60) as client:
        for rows, body in requests_of(table, schema):
            answer = client.post(
                "/v1/rank", content=body, headers={"content-type": "application/json"}
            ).raise_for_status()
            found = answer.json()
            own = np.empty(rows.stop - rows.start, np.float32)
            own[found["order"]] = found["scores"]
            scores[rows] = own
    return scores


def new_rows(old: Bundle, newer: Bundle) -> TableUpdate:
    """Returns the rows of items that only the newer bundle knows."""
    stage, vocabulary = newer.stage(), newer.encoder.vocabularies[ITEM]
    assert isinstance(stage, TableStage)
    assert vocabulary.values is not None
    known = set(old.encoder.vocabularies[ITEM].rank_by_value())
    values = vocabulary.values.to_pylist()
    ids = [i for i, value in enumerate(values) if value is not None and value not in known]
    rows = stage.rows.base[ITEM] + vocabulary.rank_of_id[ids]
    vectors = stage.state_dict()["store.weight"][rows].float().numpy()
    return TableUpdate(np.empty(0, np.int64), vectors, [values[i] for i in ids])


def measured(table: pa.Table, schema: Schema, scores: dict[str, F32], rows: Any) -> dict[str, Any]:
    """Compares scores with and without the feed on the rows selected by `rows`, bool [n]."""
    assert schema.group is not None
    label = table[schema.label.column].to_numpy().astype(np.float32)[rows]
    groups = table[schema.group].to_numpy()[rows]
    found = compare(label, {name: s[rows] for name, s in scores.items()}, "without", groups)
    difference = found["with"].to_baseline
    assert difference is not None
    said: dict[str, Any] = {"rows": int(rows.sum()), "clicks": int(label.sum())}
    for metric in METRICS:
        ends = {name: found[name].metrics[metric] for name in scores}
        said[metric] = {name: [round(x, 5) for x in (i.value, i.low, i.high)] for name, i in ends.items()}
        d = difference[metric]
        said[metric]["difference"] = [round(x, 5) for x in (d.value, d.low, d.high)]
    return said


def run(data: Path, folder: Path, shares: tuple[float, float], seed: int) -> dict[str, Any]:
    """Trains, serves, feeds and measures once. shares: of the requests, where the first two parts end."""
    schema = load_schema("trivago")
    assert schema.group is not None
    table = pq.read_table(data).sort_by(schema.group)
    ids = np.unique(table[schema.group].to_numpy())
    cuts = [ids[int(share * ids.size)] for share in shares]
    of_row = np.searchsorted(cuts, table[schema.group].to_numpy(), side="right")
    parts = [table.filter(pa.array(of_row == i)) for i in range(3)]
    for name, part in zip(("past", "recent"), parts, strict=False):
        pq.write_table(part, folder / f"{name}.parquet")
    training = default_recipe_file(schema).with_recipe({"seed": seed})
    old = Learner(open_data(folder / "past.parquet", schema), schema, training, baselines=False).learn(
        folder / "old"
    )
    recent = open_data(folder / "recent.parquet", schema)
    warm = WarmStart(old)
    newer = Learner(recent, schema, training, start=warm, baselines=False).learn(folder / "newer")
    update = new_rows(old, newer)
    assert update.names is not None
    model, encoder = reserve(old, {ITEM: len(update.names)})
    reserved = write_bundle(folder / "reserved", model, old.manifest.representation, encoder, {}, {})
    settings = {
        "plan": plan_of(reserved, folder, "thread"),
        "admin_token": TOKEN,
        "default_budget_ms": 60_000,
    }
    test = parts[2]
    with start(settings, lifeline=True) as server:
        without = served_scores(server.url, test, schema)
        begun = time.monotonic()
        httpx.post(
            f"{server.url}/v1/admin/embeddings",
            params={"add": "true"},
            content=encode_update({ITEM: update}),
            headers={"authorization": f"Bearer {TOKEN}", "content-type": "application/octet-stream"},
            timeout=60,
        ).raise_for_status()
        took_s = time.monotonic() - begun
        after = served_scores(server.url, test, schema)
    items = test[ITEM]
    known = pa.array([v for v in old.encoder.vocabularies[ITEM].rank_by_value() if v is not None])
    unseen = ~pc.is_in(items, value_set=known.cast(items.type)).to_numpy()
    fed = pc.is_in(items, value_set=pa.array(update.names).cast(items.type)).to_numpy()
    scores = {"without": without, "with": after}
    every = np.ones(test.num_rows, bool)
    rows = {"unseen in training": unseen, "of these, given a row": unseen & fed, "all candidates": every}
    return {
        "seed": seed,
        "requests": [int(np.unique(part[schema.group].to_numpy()).size) for part in parts],
        "new items": len(update.names),
        "update_ms": round(1e3 * took_s, 1),
        "changed elsewhere": float(np.abs(after - without)[~_touched(test, fed, update)].max(initial=0.0)),
        **{name: measured(test, schema, scores, which) for name, which in rows.items()},
    }


def _touched(test: pa.Table, fed: Any, update: TableUpdate) -> Any:
    """Returns whether a row's score may change: its candidate or an item of its context got a new row."""
    names = set(update.names or ())
    contexts = zip(test["last_item"].to_pylist(), test["recent_items"].to_pylist(), strict=True)
    return fed | np.array([last in names or bool(names.intersection(seen or ())) for last, seen in contexts])


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="trivago's impressions")
    parser.add_argument("--shares", type=float, nargs=2, default=(0.5, 0.75), help="(.5 .75)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    found = []
    for seed in args.seeds:
        with tempfile.TemporaryDirectory() as folder:
            found.append(run(args.data, Path(folder), tuple(args.shares), seed))
        print(json.dumps(found[-1], indent=1), flush=True)
    if args.out:
        settings = {"shares": list(args.shares), "data": args.data.name}
        whole = {"machine": machine(), "cores": os.cpu_count(), "settings": settings, "runs": found}
        save(args.out, whole)


if __name__ == "__main__":
    main()
