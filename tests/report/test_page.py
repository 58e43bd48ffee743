from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from polyrec.models.errors import PolyrecError
from polyrec.report.page import Page, Picture, Section, Table, Tile, html, make_folder
from polyrec.report.text import markdown, terminal

NASTY = '<b>"|x&'
PAGE = Page(
    f"title {NASTY}",
    "summary",
    (
        Section(
            "first",
            text="text",
            items=("item",),
            table=Table(("a", NASTY), (("row", "better by 1 (0 to 2)"), (NASTY, "")), frozenset({1})),
        ),
        Section("second", pictures=(Picture("chart", NASTY, b"light", b"dark", "chart.png"),)),
        Section("third", terms=(("term", "meaning"),)),
    ),
    tiles=(Tile("99%", "in budget", True),),
    passed=False,
    notes=("note",),
)


class Outline(HTMLParser):
    """Collects the references and texts of a page; fails where an element does not close."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "img", "source", "link"}:
            self.open.append(tag)
        self.links += [value for key, value in attrs if key in ("src", "srcset", "href") and value]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_escapes_text_and_needs_nothing_outside_itself() -> None:
    page = html(PAGE)
    outline = Outline(page)
    assert NASTY in outline.text
    assert '<b>"' not in page
    assert all(link.startswith("data:") for link in outline.links)
    assert "data:image/png;base64,bGlnaHQ=" in outline.links
    assert "data:image/png;base64,ZGFyaw==" in outline.links
    assert "<script" not in page
    assert "url(" not in page


def test_details_are_set_apart_and_verdicts_colored() -> None:
    page = html(PAGE)
    assert '<span class="good">better by 1</span>' in page
    assert "<small>0 to 2</small>" in page
    assert '<p class="bad"><strong>summary</strong></p>' in page
    assert '<b class="good">99%</b>' in page


def test_markdown_holds_the_same_content_with_pictures_beside_it() -> None:
    text = markdown(PAGE)
    assert text.startswith(f"# title {NASTY}\n")
    assert "| row | better by 1 (0 to 2) |" in text
    assert "\\|x&" in text
    assert "![chart](chart.png)" in text
    for word in ("item", "- **term**: meaning", "note"):
        assert word in text


def test_a_terminal_shows_the_tables() -> None:
    lines = terminal(PAGE.sections).splitlines()
    assert lines[0] == "first"
    assert len(lines) == 4


def test_a_folder_that_cannot_be_made_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PolyrecError, match="cannot make the folder") as error:
        make_folder(tmp_path / "file" / "report")
    assert "\n" not in str(error.value)
