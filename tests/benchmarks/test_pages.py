"""Pages of docs/results that commands write equal what they would write from the stored figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fleet import dispatch_page, plan_page
from benchmarks.gpu import page as gpu_page
from benchmarks.lanes import cores_page, two_models
from benchmarks.peers import page as peers_page
from benchmarks.peers import phases_page
from benchmarks.quality import dhe_sweep, hybrid, nested_widths, quality_cost, tables
from benchmarks.recd import tables as recd_tables
from benchmarks.routing import ladder, ladder_live_page
from benchmarks.routing.mprec import page as mprec_page
from benchmarks.tiers import policies
from benchmarks.training import warm_start
from polyrec.report.page import Page
from polyrec.report.text import markdown

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def figures(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def all_figures(name: str) -> list[Any]:
    return [json.loads(file.read_text()) for file in sorted(RESULTS.glob(f"{name}*.json"))]


def text(page: Page) -> str:
    return markdown(page).rstrip() + "\n"


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("cores", lambda _: cores_page.page(figures("cores"))),
        ("fleet-plan", lambda _: plan_page.page(figures("fleet-plan"))),
        ("fleet-simulated", lambda _: dispatch_page.page(figures("fleet-simulated"))),
        ("gpu", lambda _: gpu_page.page(RESULTS)),
        ("ladder", lambda _: text(ladder.page(figures("ladder")))),
        ("ladder-live", lambda _: text(ladder_live_page.page(all_figures("ladder-live-")))),
        ("mprec", lambda folder: text(mprec_page.page(figures("mprec"), folder))),
        ("peers", lambda _: peers_page.page([figures("peers"), *all_figures("peers-")])),
        ("phases", lambda _: phases_page.page(figures("phases"))),
        ("tier-policies", lambda _: policies.page(figures("tier-policies"))),
    ],
)
def test_the_page_is_that_of_the_stored_figures(
    name: str, made: Callable[[Path], str], tmp_path: Path
) -> None:
    assert (RESULTS / f"{name}.md").read_text() == made(tmp_path)


def test_two_models_page_begins_with_the_stored_figures() -> None:
    # what follows is about simulations and attempts, written by hand
    assert (RESULTS / "two-models.md").read_text().startswith(two_models.page(figures("two-models")))


def quality_cost_tables() -> str:
    return quality_cost.tables(*quality_cost.read(figures("quality-cost")["data"]))


@pytest.mark.parametrize(
    ("name", "marked", "made"),
    [
        ("quality", "trivago", lambda: tables.markdown(figures("quality")["data"]["trivago"], "table")),
        (
            "quality",
            "bookcrossing",
            lambda: tables.markdown(figures("quality")["data"]["bookcrossing"], "table"),
        ),
        ("dhe-sweep", "figures", lambda: dhe_sweep.tables(figures("dhe-sweep")["data"])),
        ("hybrid", "figures", lambda: hybrid.tables(figures("hybrid")["data"])),
        ("quality-cost", "figures", quality_cost_tables),
        ("nested_widths", "ml1m", lambda: nested_widths.table(figures("nested_widths")["ml1m"])),
    ],
)
def test_marked_tables_are_those_of_the_stored_figures(
    name: str, marked: str, made: Callable[[], str]
) -> None:
    page = (RESULTS / f"{name}.md").read_text()
    between = page.partition(f"<!-- begin {marked} -->\n")[2].partition(f"<!-- end {marked} -->")[0]
    assert f"{made()}\n" in between


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("recd", lambda: recd_tables.markdown(figures("recd"))),
        ("warm-start", lambda: warm_start.markdown(figures("warm-start")["ways"])),
    ],
)
def test_lines_of_tables_are_those_of_the_stored_figures(name: str, made: Callable[[], str]) -> None:
    page = (RESULTS / f"{name}.md").read_text().splitlines()
    assert [line for line in made().splitlines() if line.startswith("|") and line not in page] == []
