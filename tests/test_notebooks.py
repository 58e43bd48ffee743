"""The notebooks of docs/notebooks run from top to bottom, in a new folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))


def test_there_are_two() -> None:
    assert len(NOTEBOOKS) == 2


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(notebook: Path) -> None:
    book = nbformat.read(notebook, as_version=4)
    assert [cell.id for cell in book.cells if cell.cell_type == "code" and cell.outputs] == []


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of Jupyter's own event loop
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(
    notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `polyrec` is the one of this interpreter, wherever the test was started
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    book = nbformat.read(notebook, as_version=4)
    runner = NotebookClient(
        book, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    runner.execute()
    kinds = [output.output_type for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    assert "error" not in kinds
    pictures = [
        output
        for cell in book.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 1
