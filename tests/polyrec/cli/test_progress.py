from __future__ import annotations

import io

import pytest

from polyrec.cli.progress import ProgressBars, StatusLine
from polyrec.models.training.trainer import Check, StepReport


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_training_writes_lines_where_there_is_no_terminal() -> None:
    now, stream = [0.0], io.StringIO()
    with ProgressBars(stream, line_every_s=10, clock=lambda: now[0]) as bars:
        bars.phase("encode", 100)(100)
        for step in range(1, 101):
            now[0] += 0.5
            check = Check(20, 1.0, 0.2, 0.1234, 0.75) if step >= 20 else None
            bars.training(StepReport(step, 100, 64, 0.25, check))
    lines = stream.getvalue().splitlines()
    assert (
        lines[0]
        == "train: step 21 of 100, 128 rows/s, loss 0.2500, validation 0.1234, AUC 0.7500, 0:00:40 left"
    )
    assert lines[-1].startswith("train: step 100 of 100, 128 rows/s")
    assert len(lines) == 5


def test_a_short_training_writes_no_line() -> None:
    stream = io.StringIO()
    with ProgressBars(stream, line_every_s=10, clock=lambda: 0.0) as bars:
        for step in (1, 2):
            bars.training(StepReport(step, 2, 64, 0.25))
    assert stream.getvalue() == ""


@pytest.mark.parametrize("first", [1, 41])
def test_a_terminal_has_one_line_for_each_training(first: int) -> None:
    """Also of one that was resumed, whose speed is that of this process."""
    now, stream = [0.0], Terminal()
    with ProgressBars(stream, clock=lambda: now[0]) as bars:
        for _ in range(2):
            for step in range(first, 101):
                now[0] += 1
                bars.training(StepReport(step, 100, 10, 0.5))
    shown = stream.getvalue()
    assert shown.count("\n") == 2
    last = shown.splitlines()[-1].split("\r")[-1]
    assert "100/100" in last
    assert "10 rows/s" in last
    assert "loss 0.5000" in last
    assert "0:00:00 left" in last


def test_work_of_unknown_length_writes_a_line_now_and_then_where_there_is_no_terminal() -> None:
    now, stream = [0.0], io.StringIO()
    with StatusLine("bench", stream, line_every_s=10, clock=lambda: now[0]) as status:
        for turn in range(1, 9):
            now[0] += 3
            status.show(f"run {turn}")
    assert stream.getvalue().splitlines() == ["bench: 4 [0:00:12] run 4", "bench: 8 [0:00:24] run 8"]


def test_on_a_terminal_work_of_unknown_length_has_one_line() -> None:
    now, stream = [0.0], Terminal()
    with StatusLine("bench", stream, line_every_s=10, clock=lambda: now[0]) as status:
        now[0] += 60
        status.show("run 1")
    assert stream.getvalue().count("\n") == 1
