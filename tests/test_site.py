"""The site of mkdocs.yml: built without a warning, complete, and without anything from other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import polyrec

ROOT = Path(__file__).parents[1]
LOADED = re.compile(r"<(?:script|img|iframe|link)[^>]+(?:src|href)=\"?(?:https?:)?//", re.IGNORECASE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return folder


@pytest.mark.long
def test_every_page_is_on_the_site(site: Path) -> None:
    pages = [page.relative_to(ROOT / "docs").with_suffix(".html") for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if not (site / page).exists()] == []
    for page in ("index", "contributing", "security", "changelog"):
        assert (site / f"{page}.html").exists()


@pytest.mark.long
def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert LOADED.findall(page.read_text()) == [], page


@pytest.mark.long
def test_every_public_name_is_in_the_reference(site: Path) -> None:
    text = (site / "api.html").read_text()
    shown = set(re.findall(r'id="polyrec\.[\w.]*?(\w+)"', text))
    assert set(polyrec.__all__) - {"PolyrecError"} <= shown
