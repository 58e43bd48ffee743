"""A bundle of 26 tables, five of them large, and a plan that serves it with its rows in tiers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.models.dlrm.dlrm import DLRM, Architecture, DenseNet, dense_slots
from polyrec.models.dlrm.representation import Representation, initial_stage
from polyrec.models.embeddings.cuts import tiers_within
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import load_schema
from polyrec.models.schema.vocabulary import Vocabulary
from polyrec.planner.plan import Plan

WIDTH = 64
SMALL_ROWS = (1000, 10_000, 20_000)
LARGE = 5
"""Tables of the schema that have `large_rows`, the first ones; the others have SMALL_ROWS in turns."""


def bundle_of(folder: Path, large_rows: int, exponent: float, width: int = WIDTH) -> Bundle:
    """Writes a bundle with random rows, whose access counts follow a Zipf law; ids are ranks.

    large_rows: of each of the LARGE first tables. exponent: of the Zipf law.
    """
    schema = load_schema("criteo")
    vocabularies = {}
    for i, table in enumerate(schema.tables):
        rows = large_rows if i < LARGE else SMALL_ROWS[(i - LARGE) % len(SMALL_ROWS)]
        heat = np.arange(1, rows + 3, dtype=np.float64) ** -exponent
        # every table is looked up once a row
        counts = (1e8 / heat.sum() * heat).astype(np.int64)
        vocabularies[table] = Vocabulary(table, "integer", rows, np.arange(rows + 2), counts)
    encoder = Encoder(schema, vocabularies, {})
    representation = Representation(kind="table")
    stage = initial_stage(representation, schema, vocabularies, width, 0)
    net = DenseNet(
        Architecture(width=width, bottom=(128,), top=(128,), interaction="dot"),
        dense_slots(schema),
        stage.slots,
    )
    return write_bundle(folder, DLRM(stage, net), representation, encoder, {}, {})


def plan_of(bundle: Bundle, directory: Path, memory: int | None, prefetch: bool) -> Plan:
    """Returns the plan of one path on a thread lane. memory: bytes for rows and pages; None: for all rows."""
    latency = {"rows": [1, 1024], "median_s": [3e-4, 2e-2], "tail_s": [1e-3, 4e-2]}
    path = {"name": "table@cpu", "bundle": bundle.path, "runtime": "onnx", "latency": latency}
    plan: dict[str, object] = {
        "paths": [path],
        "lanes": [{"name": "cpu", "device": "cpu", "kind": "thread"}],
        "default_budget_ms": 60_000,
        "limits": {"max_batch_rows": 128},
    }
    if memory is not None:
        budgets = {"host": round(0.8 * memory), "disk": 1 << 60}
        cuts = tiers_within(bundle.encoder.vocabularies, 4 * WIDTH, budgets)
        placed = {"path": "table@cpu", "tables": cuts, "cache_bytes": memory - budgets["host"]}
        plan["placement"] = {"paths": [placed], "directory": directory, "prefetch": prefetch}
    return Plan.model_validate(plan)
