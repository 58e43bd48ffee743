"""The page of the figures measured on a GPU."""

from __future__ import annotations

from benchmarks.gpu.page import page
from benchmarks.readability import ROOT

RESULTS = ROOT / "docs" / "results"


def test_the_page_is_that_of_the_stored_figures() -> None:
    assert (RESULTS / "gpu.md").read_text() == page(RESULTS)
