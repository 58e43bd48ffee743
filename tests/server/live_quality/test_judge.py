"""The judge scores every path as the server does, and its figures are those of a plain evaluation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polyrec.models.bundle.bundle import Bundle
from polyrec.models.data.parquet import parquet_files
from polyrec.models.data.prediction_log.log_format import FEEDBACK, REQUESTS, SCORES
from polyrec.models.errors import PolyrecError
from polyrec.models.evaluation.live import ScoredRequest
from polyrec.models.evaluation.metrics import evaluate
from polyrec.models.runtimes import open_runtime
from polyrec.models.schema.batch import F32
from polyrec.server.live_quality.judge import (
    Judge,
    latest,
)
from polyrec.server.live_quality.settings import JudgeSettings
from tests.server.conftest import Request
from tests.server.live_quality.conftest import NARROW, WIDE, WINDOW_S, LogFolder

Predict = Callable[[Request], F32]


def unpaced(worked_s: float) -> None:
    """No rest."""


@pytest.fixture
def offline_of(nested: Bundle) -> dict[str, Predict]:
    """Probabilities of each width without any server."""

    def predictor(width: int) -> Predict:
        bundle = nested.at_width(width)
        runtime = open_runtime("torch", bundle)

        def predict(request: Request) -> F32:
            table = request.table.combine_chunks()
            return runtime.predict(bundle.encoder.from_arrow(table.to_batches()[0])).copy()

        return predict

    return {NARROW: predictor(4), WIDE: predictor(8)}


def test_quality_is_that_of_a_plain_evaluation_of_the_same_rows(
    log_folder: LogFolder,
    judge_settings: JudgeSettings,
    requests: list[Request],
    offline_of: dict[str, Predict],
    nested: Bundle,
) -> None:
    some = requests[:40]
    version = nested.manifest.version
    for i, request in enumerate(some):
        log_folder.add(request, f"r{i}", offline_of[NARROW](request), NARROW, version, ranking=i % 2 == 0)
        log_folder.label(f"r{i}", [i % len(request.rows)], [1], "shop" if i % 4 else "app")
    log_folder.write()
    report = Judge(judge_settings, unpaced).round(log_folder.final_s)
    labels = [[float(row == i % len(r.rows)) for row in range(len(r.rows))] for i, r in enumerate(some)]
    y = np.concatenate([np.array(each, np.float32) for each in labels])
    expected = {
        name: evaluate(np.concatenate([predict(r) for r in some]), y) for name, predict in offline_of.items()
    }
    for name, quality in expected.items():
        path = report.paths[name]
        assert path.information is not None
        assert path.calibration is not None
        assert path.auc is not None
        assert path.information[0] == pytest.approx(quality.information, abs=1e-4)
        assert path.calibration[0] == pytest.approx(quality.calibration, rel=1e-4)
        assert path.auc[0] == pytest.approx(quality.auc, abs=1e-4)
        assert path.information[1] < path.information[0] < path.information[2]
        assert path.version == version
    assert report.served is not None
    assert report.served.information is not None
    assert report.served.information[0] == pytest.approx(expected[NARROW].information, abs=1e-4)
    assert (report.requests, report.positives, report.differing) == (len(some), int(y.sum()), 0)
    apps = len(some[::4])
    assert report.clients == {"shop": len(some) - apps, "app": apps}


def test_hostile_labels_and_requests_are_left_out_and_counted(
    log_folder: LogFolder, judge_settings: JudgeSettings, requests: list[Request]
) -> None:
    log_folder.add(requests[0], "disputed")
    log_folder.label("disputed", [0], [1], "shop")
    log_folder.label("disputed", [0], [0], "hostile")
    log_folder.add(requests[1], "odd", np.full(len(requests[1].rows), np.nan, np.float32))
    log_folder.label("odd", [0], [1])
    for i in range(2000):
        log_folder.label(f"unknown{i}", [0], [1], "hostile")
    log_folder.write()
    report = Judge(judge_settings, unpaced).round(log_folder.final_s)
    assert (report.requests, report.disputed) == (1, 1)
    assert report.clients == {"shop": 1}
    for path in report.paths.values():
        assert path.confirmed is None


def test_the_window_slides(
    log_folder: LogFolder, judge_settings: JudgeSettings, requests: list[Request]
) -> None:
    judge = Judge(judge_settings.model_copy(update={"span_s": 3600.0}), unpaced)
    log_folder.add(requests[0], "r")
    log_folder.write()
    assert judge.round(log_folder.final_s).requests == 1
    assert judge.round(log_folder.final_s + 60).requests == 1
    assert judge.round(log_folder.final_s + 3700).requests == 0


def test_requests_of_a_clock_that_was_ahead_leave_the_window(
    log_folder: LogFolder, judge_settings: JudgeSettings, requests: list[Request]
) -> None:
    """Else they would be the newest ones until that time."""
    judge = Judge(judge_settings, unpaced)
    log_folder.at_s += 86_400
    log_folder.add(requests[0], "ahead")
    log_folder.write()
    assert judge.round(log_folder.final_s + 86_400).requests == 1
    assert judge.round(log_folder.final_s).requests == 0


def test_the_report_tells_when_requests_count_and_since_when_none_has_labels(
    log_folder: LogFolder, judge_settings: JudgeSettings, requests: list[Request]
) -> None:
    """Requests without labels are negatives: without them, quality falls as if the model had become worse."""
    judge = Judge(judge_settings.model_copy(update={"settle_s": 5.0}), unpaced)
    nothing = judge.round(log_folder.at_s)
    assert (nothing.labeled_s, nothing.final_after_s) == (None, WINDOW_S + 5)
    labeled_s = log_folder.at_s
    log_folder.add(requests[0], "labeled")
    log_folder.label("labeled", [0], [1])
    log_folder.at_s += 30
    log_folder.add(requests[1], "unlabeled")
    log_folder.write()
    report = judge.round(log_folder.final_s + 5)
    assert report.requests == 2
    assert report.labeled_s == pytest.approx(labeled_s, abs=1e-3)
    assert report.until_s == pytest.approx(labeled_s + 30, abs=1e-3)


@pytest.mark.parametrize(
    ("requests", "rows", "kept"), [(4, 9, 3), (2, 9, 2), (4, 10, 4), (4, 2, 0), (4, 3, 1)]
)
def test_the_window_is_bounded_in_requests_and_rows(requests: int, rows: int, kept: int) -> None:
    scored = [
        ScoredRequest(float(i), None, np.zeros(n, np.float32), np.zeros((2, n), np.float32))
        for i, n in enumerate((1, 2, 4, 3))
    ]
    assert latest(scored, requests, rows) == scored[len(scored) - kept :]


def test_logged_requests_that_cannot_be_read_again_are_left_out_and_counted(
    log_folder: LogFolder, judge_settings: JudgeSettings, requests: list[Request]
) -> None:
    for i in range(3):
        log_folder.add(requests[i], f"r{i}")
    log_folder.write()
    (file,) = parquet_files(log_folder.folder / REQUESTS)
    table = pq.read_table(file)
    rows = table.to_pylist()
    name = log_folder.schema.candidate.names[0]
    rows[0][name] = rows[0][name][:-1]
    rows[1][SCORES] = [*rows[1][SCORES], 0.5]
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), file)
    report = Judge(judge_settings, unpaced).round(log_folder.final_s)
    assert (report.requests, report.invalid) == (1, 2)


def test_positives_late_in_the_window_are_counted(
    log_folder: LogFolder, judge_settings: JudgeSettings, requests: list[Request]
) -> None:
    for i, after_s in enumerate((1, 10, 100, WINDOW_S - 1)):
        log_folder.add(requests[i], f"r{i}")
        log_folder.label(f"r{i}", [0], [1], after_s=after_s)
    log_folder.write()
    assert Judge(judge_settings, unpaced).round(log_folder.final_s).late_positives == 0.25


def test_positives_of_files_without_times_are_not_late(
    log_folder: LogFolder, judge_settings: JudgeSettings, requests: list[Request]
) -> None:
    for i in range(3):
        log_folder.add(requests[i], f"r{i}")
    log_folder.label("r0", [0], [1], after_s=WINDOW_S - 1)
    log_folder.label("r1", [0], [1])
    log_folder.write()
    table = pa.table({"request_id": ["r2"], "row": [0], "label": [1.0]})
    pq.write_table(table, log_folder.folder / FEEDBACK / "orders.parquet")
    report = Judge(judge_settings, unpaced).round(log_folder.final_s)
    assert (report.positives, report.late_positives) == (3, 0.5)


def test_path_that_scores_differently_than_it_answered_is_counted(
    log_folder: LogFolder, judge_settings: JudgeSettings, request_: Request, nested: Bundle
) -> None:
    log_folder.add(request_, "r", np.full(len(request_.rows), 0.9, np.float32), WIDE, nested.manifest.version)
    log_folder.write()
    assert Judge(judge_settings, unpaced).round(log_folder.final_s).differing == 1


def test_another_bundle_in_the_same_folder_is_not_judged(judge_settings: JudgeSettings) -> None:
    path = judge_settings.paths[0].model_copy(update={"version": "another"})
    with pytest.raises(PolyrecError, match="was replaced"):
        Judge(judge_settings.model_copy(update={"paths": (path,)}), unpaced)
