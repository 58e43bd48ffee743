"""Days of a prediction log that follow the data which the serving bundle has learned, and a loop over it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from benchmarks.operations.written_log import request_starts, write_log
from polyrec.loop.folder import LoopFolder
from polyrec.loop.iteration import Iteration
from polyrec.loop.loop import Loop
from polyrec.loop.steps import LoopSettings
from polyrec.models.bundle.bundle import Bundle, load_bundle, write_bundle
from polyrec.models.data.synthetic.generator import generate
from polyrec.models.dlrm.dlrm import DLRM
from polyrec.models.schema.batch import F64
from polyrec.models.schema.schema import Schema, load_schema
from polyrec.planner.plan import load_plan, save_plan, single_path_plan
from tests.planner.planning import placed

FIRST_S = datetime(2026, 1, 5, tzinfo=UTC).timestamp()
DAY_S, HOUR_S = 86_400.0, 3_600.0
ROWS = 6000
SETTINGS = {"least_clicks": 40, "margin": 0.1, "train_options": ("--epochs", "1")}


@pytest.fixture(scope="session")
def days(tmp_path_factory: pytest.TempPathFactory) -> list[pa.Table]:
    """Rows of three days of the world of `clicks`, after its own."""
    file = generate(
        tmp_path_factory.mktemp("days") / "days.parquet", 4 * ROWS, seed=7, items=300, users=200
    ).path
    table = pq.read_table(file)
    starts = request_starts(table, load_schema("trivago"))
    ends = [int(starts[np.searchsorted(starts, ROWS * n)]) for n in (1, 2, 3)] + [table.num_rows]
    return [table.slice(a, b - a) for a, b in pairwise(ends)]


def times_of_day(day: int, requests: int) -> F64:
    """Returns when requests came, evenly over a day's last three hours: each hour more is files to read."""
    return FIRST_S + DAY_S * (day + 1) - 3 * HOUR_S * (1 - (np.arange(requests) + 0.5) / requests)


@dataclass
class Looped:
    """A loop over a log, its clock set by hand. said: its lines."""

    loop: Loop
    schema: Schema
    said: list[str]
    now_s: float = FIRST_S

    @property
    def folder(self) -> LoopFolder:
        return self.loop.folder

    @property
    def last(self) -> Iteration:
        found = self.folder.last()
        assert found is not None
        return found

    def set(self, **changes: Any) -> None:
        self.loop.settings = replace(self.loop.settings, **changes)

    def log_day(self, day: int, rows: pa.Table) -> None:
        """Writes a day's rows, and sets the clock to its end."""
        at_s = times_of_day(day, request_starts(rows, self.schema).size)
        write_log(self.loop.settings.log, rows, self.schema, at_s)
        self.now_s = FIRST_S + DAY_S * (day + 1) + 60

    def served(self) -> Bundle:
        return load_bundle(load_plan(self.folder.plan).paths[0].bundle)

    def put_trained(self, model: DLRM | None = None) -> Bundle:
        """Writes the iteration's bundle as if its training had given this model, or the served one."""
        served = self.served()
        record = {"from": {"version": self.last.serving, "tables": {}}}
        parts = (served.manifest.representation, served.encoder, {}, record)
        own = self.folder.folder_of(self.last.number)
        return write_bundle(own / "bundle", model or served.model(), *parts)

    def until(self, *states: str, steps: int = 9) -> Iteration:
        """Advances until the iteration is in one of the states or at one of the steps."""
        for _ in range(steps):
            self.loop.advance()
            if {self.last.state, self.last.step} & set(states):
                return self.last
        raise AssertionError(f"never {states}: {self.said}")


def shuffled(rows: pa.Table, seed: int = 0) -> pa.Table:
    """Rows with the labels of others."""
    label = rows.column("clicked").to_numpy().copy()
    np.random.default_rng(seed).shuffle(label)
    return rows.set_column(rows.column_names.index("clicked"), "clicked", pa.array(label))


def with_scaled_weights(model: DLRM, factor: Callable[[torch.Size], float | torch.Tensor]) -> DLRM:
    """A copy with other weights of the net. factor: gives what to multiply weights of a shape by."""
    made = deepcopy(model)
    with torch.no_grad():
        for parameter in made.net.parameters():
            parameter.mul_(factor(parameter.shape))
    return made


def with_state(path: Path, bundle_dir: Path) -> Looped:
    """A loop in `path`: its log, its plan of the bundle and its state."""
    said: list[str] = []
    path.mkdir(exist_ok=True)
    if not (path / "plan.json").exists():
        # as `polyrec plan` writes it where everything fits into memory
        save_plan(placed(single_path_plan(bundle_dir, "table", "onnx"), host=9), path / "plan.json")
    settings = LoopSettings(log=path / "log", **SETTINGS)  # type: ignore[arg-type]
    loop = Loop(LoopFolder(path / "state"), settings, every_s=3600.0, settle_s=0.0, report=said.append)
    looped = Looped(loop, load_schema("trivago"), said)
    loop.clock = lambda: looped.now_s
    return looped


@pytest.fixture(scope="session")
def first_day(tmp_path_factory: pytest.TempPathFactory, bundle_dir: Path, days: Sequence[pa.Table]) -> Path:
    """The folder of a loop that published after its first day."""
    path = tmp_path_factory.mktemp("looped") / "loop"
    looped = with_state(path, bundle_dir)
    looped.log_day(0, days[0])
    looped.loop.begin(path / "plan.json")
    looped.until("published", "held")
    assert looped.last.state == "published", looped.said
    return path


@pytest.fixture
def copied(tmp_path: Path, first_day: Path, bundle_dir: Path) -> Callable[[], Looped]:
    """Makes loops that go on from a copy of `first_day`."""

    def make() -> Looped:
        if not (tmp_path / "loop").exists():
            shutil.copytree(first_day, tmp_path / "loop")
        looped = with_state(tmp_path / "loop", bundle_dir)
        looped.now_s = FIRST_S + DAY_S + 60
        return looped

    return make
