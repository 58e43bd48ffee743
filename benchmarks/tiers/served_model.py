"""A bundle of the generated model, and a plan that serves it with its rows in tiers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.tiers.generated_model import WIDTH
from benchmarks.tiers.generated_model import model as criteo
from polyrec.models.bundle.bundle import Bundle, write_bundle
from polyrec.models.dlrm.dlrm import DLRM, Architecture, DenseNet, dense_slots
from polyrec.models.dlrm.representation import Representation, initial_stage
from polyrec.models.embeddings.cuts import tiers_within
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.vocabulary import Vocabulary
from polyrec.planner.plan import Plan


def bundle_of(folder: Path, large_rows: int, exponent: float, width: int = WIDTH) -> Bundle:
    """Integer vocabularies in the order of their ids, with the counts that the traffic will have."""
    shape = criteo(large_rows)
    vocabularies = {}
    for table, rows in shape.tables.items():
        heat = np.arange(1, rows + 3, dtype=np.float64) ** -exponent
        # every table is looked up once a row
        counts = (1e8 / heat.sum() * heat).astype(np.int64)
        vocabularies[table] = Vocabulary(table, "integer", rows, np.arange(rows + 2), counts)
    encoder = Encoder(shape.schema, vocabularies, {})
    representation = Representation(kind="table")
    stage = initial_stage(representation, shape.schema, vocabularies, width, 0)
    net = DenseNet(
        Architecture(width=width, bottom=(128,), top=(128,), interaction="dot"),
        dense_slots(shape.schema),
        stage.slots,
    )
    return write_bundle(folder, DLRM(stage, net), representation, encoder, {}, {})


def plan_of(bundle: Bundle, directory: Path, memory: int | None, prefetch: bool) -> Plan:
    """memory: bytes of host memory for rows and pages; None: all rows."""
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
