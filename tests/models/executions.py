"""Every way in which a registered runtime executes a dense net on this machine's CPU."""

from __future__ import annotations

from polyrec.models.dlrm.precision import DensePrecision
from polyrec.models.runtimes.registry import runtime_kind, runtimes_for

RUNTIMES = runtimes_for("cpu")
EXECUTIONS: list[tuple[str, DensePrecision]] = [
    (name, precision) for name in RUNTIMES for precision in runtime_kind(name).precisions("cpu")
]
FEWER_BITS = [(name, precision) for name, precision in EXECUTIONS if precision != "fp32"]
