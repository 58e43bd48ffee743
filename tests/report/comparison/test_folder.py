from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from polyrec.models.errors import PolyrecError
from polyrec.report.comparison.document import Document
from polyrec.report.comparison.folder import make_folder, write_report
from polyrec.report.comparison.plots import PLOTS

Make = Callable[..., Document]
VOID = {"meta", "img", "source"}


class Outline(HTMLParser):
    """What a page refers to and says, and whether its elements close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.links += [value for key, value in attrs if key in ("src", "srcset", "href") and value]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def folder(document: Document, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_folder(tmp_path_factory.mktemp("reports") / "new" / "report")
    write_report(document, folder)
    return folder


def test_the_folder_has_page_text_numbers_and_pictures(folder: Path, document: Document) -> None:
    expected = {"report.html", "report.md", "report.json", *(plot.file for plot in PLOTS)}
    assert {file.name for file in folder.iterdir()} == expected
    assert json.loads((folder / "report.json").read_text()) == document.as_dict()


def test_the_page_needs_nothing_outside_itself(folder: Path) -> None:
    outline = Outline()
    text = (folder / "report.html").read_text(encoding="utf-8")
    outline.feed(text)
    assert outline.open == []
    assert len(outline.links) == 2 * len(PLOTS)
    assert all(link.startswith("data:image/png;base64,") for link in outline.links)
    assert "<script" not in text
    assert "prefers-color-scheme: dark" in text


def test_page_and_text_say_which_differences_are_real(folder: Path) -> None:
    outline = Outline()
    outline.feed((folder / "report.html").read_text(encoding="utf-8"))
    for said in (outline.text, (folder / "report.md").read_text(encoding="utf-8")):
        assert "better is better than table in AUC" in said
        assert "same predicts the same as table." in said
        assert "no difference shown" in said
        assert "paired" in said


def test_pictures_of_the_text_stand_beside_it(folder: Path) -> None:
    text = (folder / "report.md").read_text(encoding="utf-8")
    for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text):
        assert (folder / target).is_file()


def test_names_cannot_break_the_page_or_the_table(make: Make, tmp_path: Path) -> None:
    nasty = "<b>|x"
    write_report(make("table", nasty), tmp_path)
    outline = Outline()
    outline.feed((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert outline.open == []
    assert nasty in outline.text
    rows = [line for line in (tmp_path / "report.md").read_text().splitlines() if line.startswith("| ")]
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1


def test_a_report_of_one_model_compares_nothing(make: Make, tmp_path: Path) -> None:
    write_report(make("table"), tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# Quality and cost of one model")
    assert "against table" not in text
    assert "Pareto front:" not in text


def test_a_folder_that_cannot_be_made_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PolyrecError, match="cannot make the folder") as error:
        make_folder(tmp_path / "file" / "report")
    assert "\n" not in str(error.value)
