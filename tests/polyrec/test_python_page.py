from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.mark.long
def test_the_code_of_the_page_runs_from_top_to_bottom(
    clicks: Path, bundle_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "table").symlink_to(bundle_dir)
    (tmp_path / "clicks.parquet").symlink_to(clicks)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == PAGE.read_text().count("```python") >= 7
    names: dict[str, Any] = {}
    for block in blocks:
        line = PAGE.read_text()[: PAGE.read_text().index(block)].count("\n")
        # the line numbers of a traceback are those of the page
        exec(compile("\n" * line + block, str(PAGE), "exec"), names)
