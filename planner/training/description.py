"""The training file: tables or a calibration, the batch, the net, and the nodes that may train it.

`polyrec plan --train train.yaml` reads it. Sizes may be written like `64GB`; files are relative to it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from polyrec.models.errors import PolyrecError
from polyrec.models.files import Strict, read_described
from polyrec.planner.devices import MachineError, parse_bytes

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+$", max_length=64)]
Positive = Annotated[float, Field(gt=0, le=1e18, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]


class TrainingPlanError(PolyrecError):
    """Raised if a training file is missing or malformed, or no described node can train it."""


def _bytes(value: object) -> object:
    try:
        return parse_bytes(value) if isinstance(value, str) else value
    except MachineError as e:
        raise ValueError(str(e)) from None


Size = Annotated[int, BeforeValidator(_bytes), Field(ge=0, le=2**60)]
Speed = Annotated[int, BeforeValidator(_bytes), Field(gt=0, le=2**60)]


class DescribedTable(Strict):
    """One table without a calibration.

    zipf: exponent of its rows' lookups by rank; 0: all are equally popular. lookups: lookups per training
    row, or per request if the role is `context`.
    """

    name: Name
    rows: Annotated[int, Field(ge=1, le=10**12)]
    zipf: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]
    lookups: Positive = 1.0
    role: Literal["context", "candidate"] = "candidate"


class SlowMemory(Strict):
    """A byte-addressable memory slower than the first, such as a NUMA node, CXL or persistent memory."""

    bytes: Size
    bytes_per_s: Speed


class TrainingDisk(Strict):
    """A disk that holds rows. block_bytes: smallest unit that it reads or writes."""

    bytes: Size
    reads_per_s: Positive
    read_bytes_per_s: Speed
    write_bytes_per_s: Speed
    block_bytes: Annotated[int, Field(ge=1, le=2**30)] = 4096


class TrainingNode(Strict):
    """One kind of node; each runs one worker.

    rows_per_s: training rows per second of a single node with all rows in its memory, as `polyrec train`
    shows it. bytes_per_s: bandwidth of its link to the others, in each direction. latency_us: latency of a
    message. most: maximum number of nodes.
    """

    name: Name
    rows_per_s: Positive
    memory: Size
    slow_memory: SlowMemory | None = None
    disk: TrainingDisk | None = None
    bytes_per_s: Speed
    latency_us: NotNegative = 100.0
    price_per_hour: NotNegative = 0.0
    most: Annotated[int, Field(ge=1, le=4096)] = 64


class TrainingDescription(Strict):
    """A training and the nodes that may run it.

    calibration: file of `polyrec calibrate`, with `schema`, instead of `tables`. state: floats of optimizer
    state per row (row-wise Adagrad: one). net_bytes: weights of the dense net. fixed_bytes: memory of a
    worker for everything but rows. rows_per_request: training rows that share a context. whole_requests:
    whether batches consist of whole requests, so that a request is hot only if all of its rows are.
    rows_per_s: wanted speed.
    """

    calibration: Path | None = None
    schema_: Annotated[str | None, Field(alias="schema")] = None
    tables: tuple[DescribedTable, ...] = ()
    width: Annotated[int, Field(ge=1, le=65536)]
    state: Annotated[int, Field(ge=0, le=65536)] = 1
    batch_rows: Annotated[int, Field(ge=1, le=2**26)]
    rows_per_request: Annotated[float, Field(ge=1, le=1e6)] = 1.0
    whole_requests: bool = False
    net_bytes: Size
    fixed_bytes: Size = 2**30
    rows_per_s: Positive | None = None
    nodes: Annotated[tuple[TrainingNode, ...], Field(min_length=1, max_length=64)]

    @model_validator(mode="after")
    def _fits_together(self) -> TrainingDescription:
        if (self.calibration is None) == (not self.tables):
            raise ValueError("give either `tables` or `calibration`")
        if (self.calibration is None) != (self.schema_ is None):
            raise ValueError("`calibration` and `schema` belong together")
        for kind, names in (
            ("node", [node.name for node in self.nodes]),
            ("table", [table.name for table in self.tables]),
        ):
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f"{kind} '{name}' is described twice")
        return self

    @property
    def record_bytes(self) -> int:
        """Bytes of one row in fp32 with its optimizer state."""
        return 4 * (self.width + self.state)


def load_description(file: str | Path) -> TrainingDescription:
    """Reads a YAML or JSON file. Raises TrainingPlanError."""
    found = read_described(TrainingDescription, file, "training file", TrainingPlanError)
    changed: dict[str, object] = {}
    if found.calibration is not None:
        changed["calibration"] = Path(file).parent / found.calibration
    if found.schema_ is not None and (beside := Path(file).parent / found.schema_).is_file():
        changed["schema_"] = str(beside)
    return found.model_copy(update=changed)
