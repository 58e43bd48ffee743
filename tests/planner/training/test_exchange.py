"""Expected bytes against what two processes send, and the relations between the forms."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from polyrec.cli.train.train_workers import local_environment
from polyrec.planner.training.description import DescribedTable
from polyrec.planner.training.exchange import FORMS, Form, Step, expected_exchange
from polyrec.planner.training.popularity import described_popularity
from tests.planner.training.send_rows import HOT, SHARE, TABLES, WIDTH

ROOT = Path(__file__).parents[3]
POPULARITY = described_popularity(
    [DescribedTable(name=f"t{i}", rows=rows, zipf=zipf) for i, (rows, zipf) in enumerate(TABLES)], 1.0
)


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Bytes of rows that one of two workers sends in a step, by form, and the share of popular rows."""
    out = tmp_path_factory.mktemp("sent") / "found"
    environment = os.environ | local_environment(2) | {"PYTHONPATH": str(ROOT)}
    script = Path(__file__).with_name("send_rows.py")
    started = [
        subprocess.Popen([sys.executable, script, out], env=environment | {"RANK": str(rank)})
        for rank in range(2)
    ]
    assert [process.wait(120) for process in started] == [0, 0]
    found = [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(2)]
    return {key: float(np.mean([each[key] for each in found])) for key in found[0]}


@pytest.mark.parametrize("form", FORMS)
def test_two_workers_send_what_is_expected(form: Form, sent: dict[str, float]) -> None:
    expected = expected_exchange(form, POPULARITY, Step(2, 2 * SHARE, WIDTH, 0), HOT)
    assert expected.fetched + expected.pushed == pytest.approx(sent[form], rel=0.02)
    if form == "fae":
        assert expected.popular == pytest.approx(sent["popular"], abs=0.02)


def test_one_worker_sends_nothing() -> None:
    for form in FORMS:
        assert expected_exchange(form, POPULARITY, Step(1, 256, WIDTH, 1000), HOT).sent == 0


def test_contexts_travel_once_a_request_but_in_the_baseline() -> None:
    tables = [DescribedTable(name="user", rows=10**6, zipf=0.0, role="context", lookups=2)]
    shared = described_popularity(tables, 8.0)
    step = Step(4, 1024, 16, 0)
    every = expected_exchange("every lookup", shared, step, 0)
    distinct = expected_exchange("distinct", shared, step, 0)
    assert distinct.pushed / every.pushed == pytest.approx(1 / 8, rel=1e-3)


def test_all_rows_replicated_need_no_fetch() -> None:
    for form in ("fae", "hotline"):
        step = Step(4, 1024, 16, 0)
        found = expected_exchange(form, POPULARITY, step, POPULARITY.total_rows)
        assert found.popular == pytest.approx(1.0)
        assert found.fetched <= 8 * 3
