"""Renders reports as plain text: tables for a terminal, or a whole page as Markdown with its pictures
beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from polyrec.models.text_table import aligned
from polyrec.report.page import Page, Section


def terminal(sections: Iterable[Section]) -> str:
    """Formats the tables of the sections, in columns of equal width."""
    lines: list[str] = []
    for section in sections:
        if section.table is not None:
            lines += [section.title, *aligned([section.table.head, *section.table.rows]), ""]
    return "\n".join(lines)


def markdown(page: Page) -> str:
    """Formats the page for a repository or a merge request, without its tiles."""
    lines = [f"# {page.title}", "", page.summary, ""]
    for section in page.sections:
        lines += [f"## {section.title}", ""]
        if section.text:
            lines += [section.text, ""]
        if section.items:
            lines += [*(f"- {item}" for item in section.items), ""]
        if table := section.table:
            lines += [*markdown_table(table.head, table.rows), ""]
        for picture in section.pictures:
            lines += [f"![{picture.title}]({picture.file})", ""]
            if picture.caption:
                lines += [f"{picture.title}. {picture.caption}", ""]
        if section.terms:
            lines += [*(f"- **{term}**: {meaning}" for term, meaning in section.terms), ""]
    lines += [line for note in page.notes for line in (note, "")]
    return "\n".join(lines)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a table."""
    return [_row(head), "|" + "---|" * len(head), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
