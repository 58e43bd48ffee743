"""Generates clicks in the shape of a DLRM's data with Zipf-distributed lookups, for training benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.peers.models import CARDINALITIES, DENSE
from benchmarks.zipf import zipf_cdf
from polyrec.models.schema.schema import Schema

ZIPF = 1.05


def shared(table: int, request_rows: int) -> bool:
    """Returns whether the rows of a request share their id in a generated table."""
    return request_rows > 1 and table % 2 == 0


def zipf_schema(request_rows: int) -> Schema:
    """Returns a DLRM's schema: 13 numbers and 26 tables, every second of which belongs to the request."""
    return Schema.model_validate(
        {
            "name": f"zipf_{request_rows}",
            "dense": [{"name": f"n{i}"} for i in range(DENSE)],
            "categorical": [
                {
                    "name": f"c{i}",
                    "type": "integer",
                    "role": "context" if shared(i, request_rows) else "candidate",
                }
                for i in range(len(CARDINALITIES))
            ],
            "label": {"column": "clicked"},
            "group": "request_id",
            "split": {"rule": "time", "columns": ["request_id"], "train": 0.9, "validation": 0.05},
        }
    )


def generate_zipf(path: Path, rows: int, request_rows: int) -> None:
    """Writes rows of Zipf-distributed ids; those of every second table are constant within a request."""
    random = np.random.default_rng(0)
    request = np.arange(rows) // request_rows
    columns: dict[str, Any] = {"request_id": request, "clicked": (random.random(rows) < 0.25).astype(np.int8)}
    for i in range(DENSE):
        columns[f"n{i}"] = random.normal(size=rows).astype(np.float32)
    for i, size in enumerate(CARDINALITIES):
        of_request = shared(i, request_rows)
        draws = request[-1] + 1 if of_request else rows
        ids = np.searchsorted(zipf_cdf(size, ZIPF), random.random(draws))
        columns[f"c{i}"] = ids[request] if of_request else ids
    pq.write_table(pa.table(columns), path)
