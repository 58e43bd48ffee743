from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.routing.mprec_machines import (
    MODELS,
    PublishedModel,
    cost,
    load_machine_of,
    main,
    plan,
    profile,
)
from benchmarks.routing.roofline import Assumed

KAGGLE, TERABYTE = MODELS
ASSUMED = (Assumed(0.0, 0.0), Assumed(), Assumed(200e-6, 2e-3))


def kinds(model: PublishedModel, machine: str, queries: float, assumed: Assumed) -> set[str]:
    found = plan(profile(model, load_machine_of(machine), assumed), 10, queries)
    return {path.partition("@")[0] for path in found["paths"]}


def test_counts_agree_with_what_is_published() -> None:
    assert cost(KAGGLE, "table", 64)[1].tables["all"] == pytest.approx(2.16e9, rel=0.01)
    assert cost(TERABYTE, "table", 256)[1].tables["all"] == pytest.approx(12.6e9, rel=0.01)
    table, dhe = cost(KAGGLE, "table", 64)[0], cost(KAGGLE, "dhe", 0)[0]
    assert table.flops == pytest.approx(0.95e6, rel=0.05)
    assert dhe.flops - table.flops == pytest.approx(34.3e6, rel=0.01)


@pytest.mark.parametrize("assumed", ASSUMED)
@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_the_small_machine_computes_or_quantizes(model: PublishedModel, assumed: Assumed) -> None:
    for queries in (10, 1000):
        assert kinds(model, "small-accelerator", queries, assumed) <= {"dhe", "table-int8", "table-int4"}


@pytest.mark.parametrize("assumed", ASSUMED)
@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_the_large_machine_keeps_tables_and_hybrids(model: PublishedModel, assumed: Assumed) -> None:
    assert kinds(model, "mprec-large", 100, assumed) == {"hybrid"}
    assert kinds(model, "mprec-large", 2_000, assumed) == {"hybrid", "table"}
    assert kinds(model, "mprec-large", 100_000, assumed) == {"table"}


@pytest.mark.long
def test_the_command_writes_its_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--json", str(tmp_path / "m.json")])
    printed = capsys.readouterr().out
    results = json.loads((tmp_path / "m.json").read_text())["results"]
    assert (results[0]["machine"], results[0]["model"]) == ("mprec-large", "kaggle")
    assert len(results) == 4
    assert "small-accelerator, terabyte" in printed
