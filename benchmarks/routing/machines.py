"""Describes two machines for the routing benchmark: eight CPU lanes, and the same with one H200.

Derived, not measured: CPU costs from figures of one core under ONNX Runtime (the dense net of the Kaggle
model 7.3 ms for 1,024 rows in fp32 and 2.8 ms in int8; a 1024-128-16 decoder is 6.9 MFLOP a row at about
230 GFLOP/s), GPU costs assumed: launches of a few hundred microseconds, then fractions of a microsecond a
row. Accuracies are those recalled of MP-Rec for Kaggle; int8's is assumed 0.0003 below its table.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyrec.planner.latency_model import LatencyModel
from polyrec.planner.plan import Limits
from polyrec.planner.routing.lanes.lane import LaneSpec
from polyrec.planner.routing.lanes.path import PathSpec

ROWS = (1, 16, 64, 256, 1024, 4096)
CPU_TAIL, GPU_TAIL = 1.5, 1.3


@dataclass(frozen=True, slots=True)
class Machine:
    """Paths and lanes of one server."""

    name: str
    paths: tuple[PathSpec, ...]
    lanes: tuple[LaneSpec, ...]
    limits: Limits


def _model(fixed_s: float, row_s: float, tail: float) -> LatencyModel:
    median = tuple(fixed_s + row_s * rows for rows in ROWS)
    return LatencyModel(rows=ROWS, median_s=median, tail_s=tuple(tail * m for m in median))


def _cpu(kind: str, accuracy: float, fixed_s: float, row_s: float) -> PathSpec:
    return PathSpec(f"{kind}@cpu", "cpu", accuracy, _model(fixed_s, row_s, CPU_TAIL))


def _gpu(kind: str, accuracy: float, fixed_s: float, row_s: float) -> PathSpec:
    return PathSpec(f"{kind}@cuda:0", "cuda:0", accuracy, _model(fixed_s, row_s, GPU_TAIL))


CPU_PATHS = (
    _cpu("hybrid", 0.7898, 120e-6, 40e-6),
    _cpu("dhe", 0.7894, 100e-6, 35e-6),
    _cpu("table", 0.7879, 40e-6, 7.3e-6),
    _cpu("table.int8", 0.7876, 40e-6, 3.0e-6),
)
GPU_PATHS = (
    _gpu("hybrid", 0.7898, 550e-6, 0.35e-6),
    _gpu("dhe", 0.7894, 450e-6, 0.25e-6),
    _gpu("table", 0.7879, 300e-6, 0.10e-6),
)
CPU_LANES = tuple(LaneSpec(f"cpu{i}", "cpu", "process") for i in range(8))
GPU_LANES = (LaneSpec("gpu0", "cuda:0", "thread"),)

MACHINES = {
    "cpu": Machine("8 CPU lanes", CPU_PATHS, CPU_LANES, Limits()),
    "cpu+gpu": Machine(
        "8 CPU lanes and an H200",
        GPU_PATHS + CPU_PATHS,
        GPU_LANES + CPU_LANES,
        Limits(max_batch_rows=4096, max_queued_rows=1 << 17),
    ),
}
