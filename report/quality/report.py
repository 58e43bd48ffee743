"""Writes a comparison of models as a report.

The folder has report.html (self-contained, light and dark), report.md (the same as text), report.json (every
number) and the pictures as *.png.
"""

from __future__ import annotations

import json
from pathlib import Path

from polyrec.models.errors import PolyrecError
from polyrec.report.chart import picture
from polyrec.report.page import Page, Picture, Section, Table, html
from polyrec.report.quality.comparison import ModelComparison
from polyrec.report.quality.plots import PLOTS, Plot, draw, front
from polyrec.report.quality.wording import TERMS, findings, joined, method, summary, table, title
from polyrec.report.text import markdown


def write_report(comparison: ModelComparison, folder: Path) -> None:
    """Writes the report's files, replacing those of an earlier report. Raises PolyrecError."""
    page = page_of(comparison)
    drawn = [p for section in page.sections for p in section.pictures]
    try:
        for shown in drawn:
            (folder / shown.file).write_bytes(shown.light)
        (folder / "report.json").write_text(json.dumps(comparison.as_dict(), indent=2) + "\n")
        (folder / "report.md").write_text(markdown(page), encoding="utf-8")
        (folder / "report.html").write_text(html(page), encoding="utf-8")
    except OSError as e:
        raise PolyrecError(f"cannot write the report to '{folder}': {e.strerror}") from None


def page_of(comparison: ModelComparison) -> Page:
    """Builds the report as a page."""
    bundles = tuple((e.label, e.path, e.representation, e.version) for e in comparison.entries)
    sections = [
        Section("Figures", table=table(comparison)),
        Section("Quality against cost", pictures=tuple(_picture(comparison, plot) for plot in PLOTS)),
        Section("How to read this", terms=TERMS),
        Section(
            "Method",
            method(comparison),
            table=Table(("model", "bundle", "representation", "version"), bundles, frozenset({1, 2, 3})),
        ),
    ]
    if len(comparison.entries) > 1:
        sections.insert(0, Section("Findings", items=findings(comparison)))
    return Page(title(comparison), summary(comparison), tuple(sections))


def _picture(comparison: ModelComparison, plot: Plot) -> Picture:
    on = front(comparison, plot) if len(comparison.entries) > 1 else []
    caption = f"On the Pareto front: {joined(on)}." if on else ""
    return picture(plot.title, caption, lambda theme: draw(comparison, plot, theme), plot.file)
