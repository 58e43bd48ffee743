"""Measures the upper bound for generated data: the quality of the probabilities that clicks were drawn from.

A model can exceed it on the same rows only by chance.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from polyrec.models.data.split import TEST, Splitter
from polyrec.models.evaluation.metrics import Quality, evaluate


def best_possible_quality(path: str | Path, splitter: Splitter) -> Quality:
    """Returns the quality of the true probabilities (column `planted`) on a generated file's test rows."""
    planted, clicked, requests = [], [], []
    for batch in pq.ParquetFile(path).iter_batches(columns=["planted", "clicked", "request_id"]):
        test = splitter(batch) == TEST
        planted.append(batch.column("planted").to_numpy()[test])
        clicked.append(batch.column("clicked").to_numpy()[test])
        requests.append(batch.column("request_id").to_numpy()[test])
    return evaluate(
        np.concatenate(planted).astype(np.float32),
        np.concatenate(clicked).astype(np.float32),
        np.concatenate(requests).astype(np.int64),
    )
