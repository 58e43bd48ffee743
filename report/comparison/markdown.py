"""The report as Markdown, for a repository or a merge request; pictures stand beside it."""

from __future__ import annotations

from collections.abc import Iterable

from polyrec.report.comparison.document import Document
from polyrec.report.comparison.explanations import GLOSSARY, method, title, what
from polyrec.report.comparison.plots import PLOTS, front
from polyrec.report.comparison.words import columns, findings, listed


def markdown(document: Document) -> str:
    """The text of `report.md`."""
    several = len(document.entries) > 1
    lines = [f"# {title(document)}", "", what(document), ""]
    if several:
        lines += ["## What is real", "", *(f"- {line}" for line in findings(document)), ""]
    lines += ["## Figures", ""]
    table = columns(document)
    lines += [_row([c.head for c in table]), "|" + "---|" * len(table)]
    lines += [_row(cells) for cells in zip(*(c.cells for c in table), strict=True)]
    lines += ["", "## Quality against cost", ""]
    for plot in PLOTS:
        on = front(document, plot)
        lines += [f"![{plot.title}]({plot.file})", ""]
        if several and on:
            lines += [f"{plot.title}. On the Pareto front: {listed([_cell(o) for o in on])}.", ""]
    lines += ["## How to read this", "", *(f"- **{word}**: {means}" for word, means in GLOSSARY), ""]
    lines += ["## How it was made", "", method(document), ""]
    lines += [
        f"- `{_cell(e.label)}`: {_cell(e.path)}, representation {e.representation}, version {e.version}"
        for e in document.entries
    ]
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
