from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from polyrec.report.page import make_folder
from polyrec.report.quality.comparison import ModelComparison
from polyrec.report.quality.plots import PLOTS
from polyrec.report.quality.report import write_report
from tests.report.test_page import Outline

Make = Callable[..., ModelComparison]


@pytest.fixture(scope="module")
def folder(comparison: ModelComparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_folder(tmp_path_factory.mktemp("reports") / "new" / "report")
    write_report(comparison, folder)
    return folder


def test_the_folder_has_page_text_numbers_and_pictures(folder: Path, comparison: ModelComparison) -> None:
    expected = {"report.html", "report.md", "report.json", *(plot.file for plot in PLOTS)}
    assert {file.name for file in folder.iterdir()} == expected
    assert json.loads((folder / "report.json").read_text()) == comparison.as_dict()


def test_the_page_needs_nothing_outside_itself(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    links = Outline(text).links
    assert sum(link.startswith("data:image/png;base64,") for link in links) == 2 * len(PLOTS)
    assert all(link.startswith("data:") for link in links)
    assert "<script" not in text
    assert "prefers-color-scheme: dark" in text


def test_page_and_text_name_real_differences(folder: Path) -> None:
    outline = Outline((folder / "report.html").read_text(encoding="utf-8"))
    for said in (outline.text, (folder / "report.md").read_text(encoding="utf-8")):
        assert "better is better than table in information" in said
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
    assert nasty in Outline((tmp_path / "report.html").read_text(encoding="utf-8")).text
    tables = re.findall(r"(?:^\|.*\n)+", (tmp_path / "report.md").read_text(), re.MULTILINE)
    assert len(tables) == 2
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1


def test_a_report_of_one_model_compares_nothing(make: Make, tmp_path: Path) -> None:
    write_report(make("table"), tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# Quality and cost of one model")
    assert "against table" not in text
    assert "Pareto front:" not in text
