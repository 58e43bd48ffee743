"""The benchmark of phases: what it reads from a server, and what it measures alone."""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.peers.models import MODELS, write_model
from benchmarks.peers.phases import FORMS, measure
from benchmarks.peers.phases_page import PHASES

SMALL = 2_000
"""Rows of all tables together."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(replace(MODELS["kaggle"], rows=SMALL), tmp_path / "kaggle")
    return tmp_path


@pytest.mark.long
def test_every_phase_is_measured_alone_and_in_the_server(folder: Path) -> None:
    cores = os.sched_getaffinity(0)
    result = measure(
        Namespace(
            model="kaggle",
            folder=folder,
            width=None,
            runtime="onnx",
            precision="fp32",
            rows=[9],
            form=list(FORMS),
            turns=1,
            connections=[1, 4],
            seconds=0.1,
        )
    )
    assert os.sched_getaffinity(0) == cores  # later tests use all of them
    assert set(result["cases"]) == {f"9 {form}" for form in FORMS}
    for found in result["cases"].values():
        assert set(found["phases_ms"]) == set(PHASES)
        assert found["sum_ms"] == pytest.approx(sum(found["phases_ms"].values()))
        assert set(found["server"]) == {"1", "4"}
        for turn in found["server"].values():
            # each phase left a trace in the server's metrics
            assert set(turn["phases_ms"]) == set(PHASES)
            assert min(turn["phases_ms"].values()) > 0
            assert turn["beyond_ms"] == pytest.approx(turn["cpu_ms"] - sum(turn["phases_ms"].values()))
