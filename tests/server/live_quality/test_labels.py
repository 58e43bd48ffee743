"""Labels are joined as training joins them, with their clients."""

from __future__ import annotations

import math
import time
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyrec.models.data.prediction_log.labels import CLOCKS_S
from polyrec.models.data.prediction_log.log_format import FEEDBACK
from polyrec.models.data.prediction_log.reader import PredictionLogReader
from polyrec.server.live_quality.labels import NEVER, OPERATOR, RequestLabels, join_labels
from tests.server.conftest import Request
from tests.server.live_quality.conftest import WINDOW_S, LogFolder


def joined(log_folder: LogFolder, ids: dict[str, int]) -> list[RequestLabels]:
    """ids: request id -> rows."""
    found = [RequestLabels.unlabeled(i, round(1e6 * log_folder.at_s), n) for i, n in ids.items()]
    join_labels(log_folder.folder, found, WINDOW_S)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_any_labels_are_joined_as_training_joins_them(
    log_folder: LogFolder, requests: list[Request], seed: int
) -> None:
    random = np.random.default_rng(seed)
    ids = {f"r{i}": request for i, request in enumerate(requests[:6])}
    for request_id, request in ids.items():
        log_folder.add(request, request_id)
    for part in range(3):
        for _ in range(30):
            # of unknown requests and rows, twice for a row, within the window and after it
            rows = random.integers(0, 40, 4).tolist()
            after_s = float(random.choice([-CLOCKS_S - 1, -1, 1, 5, WINDOW_S - 1, WINDOW_S + 1]))
            labels = random.integers(0, 2, 4).astype(float).tolist()
            log_folder.label(f"r{random.integers(0, 9)}", rows, labels, f"c{part}", after_s)
        log_folder.write()
    label = log_folder.schema.label.column
    reader = PredictionLogReader(log_folder.folder, log_folder.schema, now_s=log_folder.final_s)
    expected = [row[label] for batch in reader.batches([label]) for row in batch.to_pylist()]
    found = joined(log_folder, {i: len(request.rows) for i, request in ids.items()})
    assert list(chain.from_iterable(r.values.tolist() for r in found)) == expected


def test_clients_are_those_whose_labels_count(log_folder: LogFolder, request_: Request) -> None:
    log_folder.add(request_, "r")
    log_folder.label("r", [0], [1], "shop")
    log_folder.label("r", [10_000], [1], "of no row")
    log_folder.label("r", [0], [1], "late", after_s=WINDOW_S + 1)
    log_folder.label("r", [0], [1], "of an earlier request", after_s=-CLOCKS_S - 1)
    log_folder.label("other", [0], [1], "of another request")
    log_folder.write()
    (found,) = joined(log_folder, {"r": len(request_.rows)})
    assert found.clients == {"shop"}
    assert found.given_us[0] == round(1e6 * (log_folder.at_s + 10))
    assert set(found.given_us[1:].tolist()) == {NEVER}


def test_labels_of_a_clock_that_is_behind_count_across_the_hour_too(
    log_folder: LogFolder, request_: Request
) -> None:
    log_folder.at_s = 3600.0 * (time.time() // 3600) + 20
    log_folder.add(request_, "r")
    log_folder.label("r", [0], [1], after_s=-50)
    log_folder.write()
    (found,) = joined(log_folder, {"r": len(request_.rows)})
    assert found.clients == {"shop"}


def test_files_of_the_operator_need_neither_time_nor_client(log_folder: LogFolder, request_: Request) -> None:
    log_folder.add(request_, "r")
    log_folder.label("r", [1, 0], [1, 1])
    log_folder.write()
    table = pa.table({"request_id": ["r", "r", "r"], "row": [1, None, 2], "label": [0.0, 1.0, math.nan]})
    pq.write_table(table, log_folder.folder / FEEDBACK / "orders.parquet")
    (found,) = joined(log_folder, {"r": len(request_.rows)})
    assert found.binary[:3].tolist() == [1, 0, 0]
    assert found.clients == {"shop", OPERATOR}
