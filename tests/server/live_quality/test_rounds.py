"""A judge rests after work, takes new settings at once, and keeps its window between rounds."""

from __future__ import annotations

import os
import shutil
import threading

import pytest

from polyrec.models.data.prediction_log.log_format import REQUESTS
from polyrec.server.live_quality.report import Report, read_report, report_file
from polyrec.server.live_quality.rounds import (
    LONGEST_REST_S,
    WORK_SHARE,
    ServerGone,
    SettingsPipe,
    rest_after,
    run,
)
from polyrec.server.live_quality.settings import JudgeSettings
from polyrec.server.record_pipe import framed
from tests.server.conftest import Request
from tests.server.live_quality.conftest import WINDOW_S, LogFolder
from tests.server.prediction_log.test_log import wait


@pytest.mark.parametrize("worked_s", [1e-4, 0.02, 0.5])
def test_the_judge_rests_for_its_share_of_a_core(worked_s: float) -> None:
    assert worked_s / (worked_s + rest_after(worked_s)) == pytest.approx(WORK_SHARE)


def test_a_piece_of_work_that_took_long_does_not_stop_the_judge_for_long() -> None:
    assert rest_after(0.0) == 0.0
    assert rest_after(600.0) == LONGEST_REST_S


def test_settings_interrupt_the_judge_once_and_the_newest_count(judge_settings: JudgeSettings) -> None:
    """Heartbeats and parts of records do not interrupt it."""
    first, second, third = (judge_settings.model_copy(update={"every_s": float(n)}) for n in (1, 2, 3))
    record, another, last = (framed(s.model_dump_json().encode()) for s in (first, second, third))
    heartbeat = framed(b"")
    reader, writer = os.pipe()
    try:
        pipe = SettingsPipe(reader)
        for sent, interrupts, settings in (
            (record, True, first),
            (heartbeat, False, first),
            (heartbeat + another[:9], False, first),
            (another[9:] + heartbeat, True, second),
            (record + last, True, third),
            (heartbeat, False, third),
        ):
            os.write(writer, sent)
            assert pipe.wait(0.0) is interrupts
            assert pipe.settings == settings
    finally:
        os.close(writer)
    with pytest.raises(ServerGone):
        pipe.wait(0.0)
    os.close(reader)


def test_the_window_outlasts_the_files_and_heartbeats_but_not_other_settings(
    log_folder: LogFolder,
    judge_settings: JudgeSettings,
    requests: list[Request],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A judge that began anew would find no files."""
    monkeypatch.setattr("polyrec.server.live_quality.rounds.LONGEST_REST_S", 0.0)
    log_folder.at_s -= 2 * WINDOW_S
    for i, request in enumerate(requests[:3]):
        log_folder.add(request, f"r{i}")
    log_folder.write()
    for file in log_folder.folder.glob(f"{REQUESTS}/*/*.parquet"):
        os.utime(file, (log_folder.at_s, log_folder.at_s))

    def report_after(settings: JudgeSettings, at_s: float) -> Report:
        found: list[Report] = []

        def is_there() -> bool:
            report = read_report(report_file(log_folder.folder, settings.digest))
            found.extend([] if report is None or report.at_s <= at_s else [report])
            return bool(found)

        wait(is_there)
        return found[0]

    settings = judge_settings.model_copy(update={"every_s": 0.01})
    others = settings.model_copy(update={"every_s": 0.02})
    reader, writer = os.pipe()
    judging = threading.Thread(target=run, args=(reader,))
    judging.start()
    try:
        os.write(writer, framed(settings.model_dump_json().encode()))
        report = report_after(settings, 0.0)
        shutil.rmtree(log_folder.folder / REQUESTS)
        for _ in range(3):
            assert report.requests == 3
            os.write(writer, framed(b""))
            report = report_after(settings, report.at_s)
        os.write(writer, framed(others.model_dump_json().encode()))
        assert report_after(others, 0.0).requests == 0
    finally:
        os.close(writer)
        judging.join()
        os.close(reader)
