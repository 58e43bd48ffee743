"""Tests process lanes whose worker cannot start."""

from __future__ import annotations

import sys

import pytest

from polyrec.models.errors import RuntimeUnavailable
from polyrec.planner.plan import PlannedLane
from polyrec.server.lanes.lane import Lane
from polyrec.server.lanes.opening import LaneOpening, Paths, task_of
from polyrec.server.lanes.process import ProcessLane
from tests.server.lanes.lane_calls import open_files, worker_processes

PROCESS = PlannedLane(name="cpu-1", kind="process")


def ignore_death(lane: Lane) -> None:
    """A lane that does not open has nobody to tell."""


def test_a_worker_that_cannot_open_its_paths_says_why_in_one_line(paths: Paths) -> None:
    task = task_of(PROCESS, paths)
    elsewhere = task.paths[0].model_copy(update={"device": "teapot"})
    with pytest.raises(RuntimeUnavailable, match="lane 'cpu-1': torch has no device 'teapot'") as caught:
        ProcessLane("cpu-1", task.model_copy(update={"paths": (elsewhere,)}), ignore_death)
    assert "\n" not in str(caught.value)
    assert worker_processes() == []


def test_process_that_cannot_be_started_is_reported_in_one_line(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    files = open_files()
    with pytest.raises(
        RuntimeUnavailable, match=r"lane 'cpu-1': its process cannot be started: .*No such file"
    ):
        LaneOpening(PROCESS, paths, ignore_death).open()
    assert open_files() == files


def test_worker_that_ends_during_its_start_is_reported(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")  # the interpreter does not come up
    with pytest.raises(RuntimeUnavailable, match="its process exited with status 1 while it started"):
        LaneOpening(PROCESS, paths, ignore_death).open()
