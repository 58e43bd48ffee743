"""Renders a report as a self-contained HTML file, from sections of text, tables and pictures.

`polyrec.report.text` writes the same `Page` as Markdown and for a terminal.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from polyrec.models.errors import PolyrecError


@dataclass(frozen=True, slots=True)
class Tile:
    """A headline figure. good: whether it is colored green or red; None for neither."""

    value: str
    label: str
    good: bool | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a page.

    text_columns: positions of left-aligned columns, in which "detail" of `value (detail)` is set small.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG in both themes. file: its name beside a Markdown report."""

    title: str
    caption: str
    light: bytes
    dark: bytes
    file: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and the content below it, in the order of the fields. terms: (term, explanation)."""

    title: str
    text: str = ""
    items: tuple[str, ...] = ()
    table: Table | None = None
    pictures: tuple[Picture, ...] = ()
    terms: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a report.

    summary: one sentence or a paragraph. passed: colors the summary; None if nothing was required.
    """

    title: str
    summary: str
    sections: tuple[Section, ...]
    tiles: tuple[Tile, ...] = ()
    passed: bool | None = None
    notes: tuple[str, ...] = ()


def html(page: Page) -> str:
    """Renders the whole file; no scripts, nothing fetched, light or dark by the reader's preference."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["data_uri"] = lambda png: f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return environment.get_template("page.html").render(page=page)


def require_matplotlib() -> None:
    """Raises PolyrecError if matplotlib is not installed; called before hours of work, not after."""
    if find_spec("matplotlib") is None:
        raise PolyrecError(
            "a report is drawn with matplotlib, which is not installed: pip install 'polyrec[report]'"
        )


def make_folder(path: str | Path) -> Path:
    """Creates the folder to write to, unless it exists. Raises PolyrecError."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise PolyrecError(f"cannot make the folder '{path}': {e.strerror}") from None
    return folder
