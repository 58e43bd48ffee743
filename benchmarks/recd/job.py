"""Runs one measurement of benchmarks/recd/savings.py in a separate process, to measure its own peak memory.

    python -m benchmarks.recd.job '{"what": "read", ...}'

Prints one JSON object. Seconds are CPU seconds of the process, which has one thread; on a shared machine they
show what an idle core would take. Wall-clock seconds are reported too.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from polyrec.models.data.encoded import EncodedRows, encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TEST, TRAIN, VALIDATION, fit_splitter
from polyrec.models.dlrm.dlrm import DLRM, DenseNet, dense_slots
from polyrec.models.dlrm.representation import RepresentationKind, initial_stage
from polyrec.models.embeddings.computed import ComputedStage
from polyrec.models.schema.batch import F32, I64, Batch
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.popularity import calibrate, load_calibration
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.pipeline import measure_widths
from polyrec.models.training.recipe import Recipe, default_recipe_file
from polyrec.models.training.source import Rows
from polyrec.models.training.stepper import Stepper
from polyrec.models.training.trainer import fit, refit
from polyrec.models.training.unseen import recipe_id_dropout

STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class Job:
    """One measurement.

    share: whether equal contexts are stored and computed once. distinct: whether computed rows are
    computed once per distinct id. hide, batch_rows: None for the recipe's.
    """

    what: str
    source: str
    calibration: str = ""
    share: bool = False
    by_request: bool = False
    distinct: bool = True
    kind: RepresentationKind = "table"
    steps: int = 100
    seed: int = 0
    hide: float | None = None
    batch_rows: int | None = None
    core: int = 0


class Counted:
    """Training rows that count how many rows and contexts were drawn."""

    def __init__(self, data: EncodedRows) -> None:
        self.label: F32 = data.label
        self.group: I64 | None = data.group
        self.rows = self.contexts = 0
        self._data = data

    def batch(self, rows: I64) -> Batch:
        batch = self._data.batch(rows)
        self.rows += batch.rows
        self.contexts += batch.context.rows
        return batch


def memory(key: str) -> int:
    """Returns bytes of memory: VmRSS, the process's current memory, or VmHWM, its peak since `forget`."""
    found = re.search(rf"{key}:\s+(\d+) kB", STATUS.read_text())
    assert found is not None
    return int(found[1]) * 1024


def forget() -> int:
    """Resets VmHWM; returns the current resident memory."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def clock() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def read(job: Job) -> dict[str, Any]:
    schema = load_schema("trivago")
    reader = open_data(job.source, schema)
    splitter = fit_splitter(reader, schema)
    found = load_calibration(job.calibration, schema)
    encoder = Encoder(schema, found.vocabularies, found.standards)
    before = forget()
    with encode(reader, encoder, splitter, share=job.share) as data:
        out: dict[str, Any] = {"rows": data.rows, "contexts": data.contexts, "encoded_bytes": data.nbytes}
    out["peak_bytes"] = memory("VmHWM") - before
    times = []
    for _ in range(3):
        begin = clock()
        encode(reader, encoder, splitter, share=job.share).close()
        times.append(np.subtract(clock(), begin))
    cpu, wall = np.median(times, axis=0).tolist()
    return out | {"cpu_s": cpu, "wall_s": wall}


def model_of(job: Job, encoder: Encoder) -> DLRM:
    training = default_recipe_file(encoder.schema)
    shape = training.architecture
    torch.manual_seed(job.seed)
    representation = training.representation(job.kind, encoder.vocabularies)
    stage = initial_stage(representation, encoder.schema, encoder.vocabularies, shape.width, job.seed)
    for part in (stage, getattr(stage, "computed", None)):
        if isinstance(part, ComputedStage):
            part.distinct = job.distinct
    return DLRM(stage, DenseNet(shape, dense_slots(encoder.schema), stage.slots))


def recipe_of(job: Job) -> Recipe:
    """Returns the shipped recipe with the job's changes."""
    changes = {name: getattr(job, name) for name in ("by_request", "seed", "hide", "batch_rows")}
    recipe = default_recipe_file(load_schema("trivago")).recipe
    return recipe.model_copy(update={k: v for k, v in changes.items() if v is not None})


def train(job: Job) -> dict[str, Any]:
    """Measures rows/s of optimizer steps after ten warm-up steps, and peak memory of reading and training."""
    schema = load_schema("trivago")
    recipe = recipe_of(job)
    reader = open_data(job.source, schema)
    splitter = fit_splitter(reader, schema)
    found = load_calibration(job.calibration, schema)
    encoder = Encoder(schema, found.vocabularies, found.standards)
    before = forget()
    data = encode(reader, encoder, splitter, (TRAIN,), share=job.share)
    hide = recipe_id_dropout(recipe, encoder, {}, {})
    counted = Counted(data)
    run = iter(Stepper(model_of(job, encoder), Rows(counted, data.select(TRAIN)), recipe, 1_000_000, hide))
    losses = [next(run).loss for _ in range(10)]
    rows, contexts, begin = counted.rows, counted.contexts, clock()
    losses += [next(run).loss for _ in range(job.steps)]
    cpu, wall = np.subtract(clock(), begin).tolist()
    rows, contexts = counted.rows - rows, counted.contexts - contexts
    peak = memory("VmHWM") - before
    return {
        "rows": rows,
        "contexts": contexts,
        "cpu_s": cpu,
        "wall_s": wall,
        "peak_bytes": peak,
        "losses": losses,
    }


def quality(job: Job) -> dict[str, Any]:
    """Runs the recipe's whole training including refit, and measures the quality on the test rows."""
    schema = load_schema("trivago")
    recipe = recipe_of(job)
    reader = open_data(job.source, schema)
    splitter = fit_splitter(reader, schema)
    begin = time.process_time()

    def encoded(which: tuple[int, ...]) -> tuple[Encoder, EncodedRows]:
        found = calibrate(reader, schema, splitter, which=which)
        encoder = Encoder(schema, found.vocabularies, found.standards)
        return encoder, encode(reader, encoder, splitter, (TRAIN, VALIDATION), share=job.share)

    encoder, data = encoded((TRAIN,))
    hide = recipe_id_dropout(recipe, encoder, {}, {})
    training, validation = (Rows(data, data.select(which)) for which in (TRAIN, VALIDATION))
    history = fit(model_of(job, encoder), training, validation, recipe, hide)
    data.close()
    encoder, data = encoded((TRAIN, VALIDATION))
    hide = recipe_id_dropout(recipe, encoder, {}, {})
    model = model_of(job, encoder)
    refit(model, Rows(data, data.select(TRAIN, VALIDATION)), recipe, history, hide)
    data.close()
    with encode(reader, encoder, splitter, (TEST,), share=job.share) as test:
        found = measure_widths(model, test, schema)[None]
    return found.as_dict() | {"cpu_s": time.process_time() - begin}


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    os.sched_setaffinity(0, {job.core})
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    print(
        json.dumps({"read": read, "train": train, "quality": quality}[job.what](job) | {"job": asdict(job)})
    )


if __name__ == "__main__":
    main()
