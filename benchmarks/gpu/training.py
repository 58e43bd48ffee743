"""Measures rows/s of training steps on a device and on one CPU core.

    python -m benchmarks.gpu.training --device cuda:0 --out docs/results/gpu-training.json

Steps are those of `polyrec train` on generated clicks in trivago's shape: a batch is drawn and encoded on the
host, then computed, differentiated and applied on the device. Table and DHE, the shipped net and a large one,
fp32 and bf16 (autocast), batches of several sizes. The CPU and the device take turns; figures are written
after each case.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks.command import device_parser, save
from benchmarks.gpu.page import training_table
from benchmarks.training.precision import NETS, PRECISIONS
from polyrec.loadtest.machine import processor
from polyrec.models.data.encoded import EncodedRows, encode
from polyrec.models.data.reader import open_data
from polyrec.models.data.split import TRAIN, fit_splitter
from polyrec.models.data.synthetic.generator import generate
from polyrec.models.dlrm.dlrm import Architecture
from polyrec.models.dlrm.representation import RepresentationKind
from polyrec.models.schema.encoder import Encoder
from polyrec.models.schema.schema import load_schema
from polyrec.models.training.pipeline import Learner
from polyrec.models.training.recipe import RecipeFile
from polyrec.models.training.source import Rows
from polyrec.models.training.stepper import Stepper

CLICKS, SMALL_CLICKS = 100_000, 4_000
BATCHES, SMALL_BATCHES = (512, 4096, 32_768), (64,)


@dataclass(frozen=True, slots=True)
class TrainCase:
    """A training to time. kind: representation. net: name of one of NETS. batch_rows: rows of a step."""

    kind: RepresentationKind
    net: str
    precision: str
    batch_rows: int


def cases(batches: tuple[int, ...]) -> Iterator[TrainCase]:
    """Returns the cases, those of most interest first: DHE and the large net only with one batch size."""
    middle = batches[len(batches) // 2]
    shipped, large = NETS
    for batch_rows in batches:
        yield from (TrainCase("table", shipped, precision, batch_rows) for precision in PRECISIONS)
    others: tuple[tuple[RepresentationKind, str], ...] = (("table", large), ("dhe", shipped))
    for kind, net in others:
        yield from (TrainCase(kind, net, precision, middle) for precision in PRECISIONS)


def rows_per_s(stepper: Stepper, seconds: float) -> float:
    """Takes steps for a third of the time, then counts the rows of those taken in `seconds`."""
    steps = iter(stepper)
    rows, took_s = 0, 1.0
    for limit_s in (seconds / 3, seconds):
        rows, begun_s, took_s = 0, time.perf_counter(), 0.0
        while took_s < limit_s:
            # its loss is read, so the device has computed it
            rows += next(steps).rows
            took_s = time.perf_counter() - begun_s
    return rows / took_s


def stepper_of(learner: Learner, encoder: Encoder, data: EncodedRows, device: str) -> Stepper:
    """Returns the steps of a training from nothing on a device."""
    model = learner.initial_model(encoder).to(device)
    return Stepper(model, Rows(data, data.select(TRAIN)), learner.recipe, 10**6)


def measure(
    device: str, clicks: int, batches: tuple[int, ...], seconds: float, out: Path | None
) -> dict[str, Any]:
    """Measures all cases on the CPU and the device; writes the figures after each."""
    kind = torch.cuda.get_device_name(device) if device != "cpu" else "cpu"
    found: list[dict[str, Any]] = []
    report = {"device": kind, "processor": processor(), "torch": torch.__version__, "cases": found}
    schema = load_schema("trivago")
    with tempfile.TemporaryDirectory() as folder:
        reader = open_data(generate(Path(folder) / "clicks.parquet", clicks, seed=1).path, schema)
        splitter = fit_splitter(reader, schema)
        encoder = Learner(reader, schema, RecipeFile()).encoder_of(splitter, (TRAIN,))
        with encode(reader, encoder, splitter, (TRAIN,)) as data:
            for case in cases(batches):
                shape = Architecture(width=32, bottom=(128,), top=NETS[case.net], interaction="cat")
                recipe = {"batch_rows": case.batch_rows, "precision": case.precision}
                training = RecipeFile(architecture=shape).with_recipe(recipe)
                learner = Learner(reader, schema, training, case.kind)
                rates = {
                    name: rows_per_s(stepper_of(learner, encoder, data, on), seconds)
                    for name, on in (("cpu", "cpu"), ("device", device))
                }
                found.append(asdict(case) | {"rows_per_s": rates})
                print(found[-1], flush=True)
                save(out, report)
    return report


def main() -> None:
    args = device_parser(__doc__, "few clicks", 1.0, "of each case on each device").parse_args()
    torch.set_num_threads(1)
    clicks, batches = (SMALL_CLICKS, SMALL_BATCHES) if args.small else (CLICKS, BATCHES)
    report = measure(args.device, clicks, batches, args.seconds, args.out)
    print("\n".join(training_table(report)))


if __name__ == "__main__":
    main()
