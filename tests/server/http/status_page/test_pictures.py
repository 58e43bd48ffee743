"""Compares the status page with approved pictures: on a phone and a desktop, in light and dark.

A real server sends the page, with its content security policy; only the data is a recorded answer of
/v1/status (status.json; `python -m benchmarks.operations.status_pictures --record`), so that the same page is
drawn each time. After a wanted change draw them anew, and look at them:

    APPROVE=1 pytest -m long tests/server/http/status_page/test_pictures.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.operations.browser import PROGRAM, Page, browser
from tests.forking import start

pytestmark = pytest.mark.long
HERE = Path(__file__).parent
RECORDED = HERE / "status.json"
FONT = "DejaVu Sans"
BLOCK = 4
"""Side in pixels of the blocks whose means are compared: edges of letters differ between releases."""
NOTICEABLE = 24
"""Difference of a block's mean, of 255."""
TOLERATED = 0.001
"""Share of blocks that may differ noticeably; the text of one tile is 0.2%."""


def has_font() -> bool:
    program = shutil.which("fc-list")
    listed = subprocess.run([program, FONT], capture_output=True) if program else None
    return listed is not None and bool(listed.stdout)


@pytest.fixture(scope="module")
def page(bundle_dir: Path) -> Iterator[Page]:
    """The page of a real server, with recorded data and letters that every machine has."""
    if PROGRAM is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    if not has_font():
        pytest.skip(f"no font {FONT} on this machine (Debian: apt-get install fonts-dejavu-core)")
    with start({"bundle": bundle_dir, "drain_grace_s": 0}) as server, browser() as tab:
        tab.call("Emulation.setTimezoneOverride", timezoneId="UTC")
        tab.answer("*/v1/status*", RECORDED.read_bytes())
        tab.size(1280, 900)
        tab.open(server.url)
        tab.until("document.querySelectorAll('.chart canvas').length === 4")
        tab.run(f"document.body.style.fontFamily = '{FONT}'")
        yield tab


def drawn(page: Page, width: int, scheme: str, file: Path) -> np.ndarray:
    """Draws the page, on a desktop with the mouse over a chart; returns the means of its blocks."""
    page.size(width, 900, phone=width < 600)
    # charts take the font when they are built, which another theme causes
    for theme in ({"light": "dark", "dark": "light"}[scheme], scheme):
        page.prefer(theme)
        page.until(f"document.documentElement.dataset.theme === '{theme}'")
    place = page.run(
        "(({x, y, width}) => [x + 0.55 * width, y + 40])"
        "(document.querySelector('#latency-chart .u-over').getBoundingClientRect())"
    )
    if width >= 600:
        page.point(*place)
        page.until("document.querySelector('#gain-at').innerText !== 'now'")
    page.run("import('/status/page.js').then((m) => m.draw())")
    page.run("new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))")
    page.picture(file)
    return blocks(file)


def blocks(file: Path) -> np.ndarray:
    with Image.open(file) as picture:
        pixels = np.asarray(picture.convert("RGB"), dtype=np.float32)
    rows, columns = pixels.shape[0] // BLOCK, pixels.shape[1] // BLOCK
    kept = pixels[: rows * BLOCK, : columns * BLOCK]
    return kept.reshape(rows, BLOCK, columns, BLOCK, 3).mean(axis=(1, 3))


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """Share of blocks that differ noticeably; 1 for pictures of other sizes."""
    if one.shape != other.shape:
        return 1.0
    return float((np.abs(one - other).max(axis=2) > NOTICEABLE).mean())


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_looks_as_approved(page: Page, width: int, scheme: str, tmp_path: Path) -> None:
    approved, now = HERE / "approved" / f"{width}-{scheme}.png", tmp_path / f"{width}-{scheme}.png"
    found = drawn(page, width, scheme, now)
    assert page.complaints == []
    if os.environ.get("APPROVE"):
        with Image.open(now) as picture:
            picture.convert("RGB").quantize(96).save(approved, optimize=True)
    share = difference(found, blocks(approved))
    assert share <= TOLERATED, f"{share:.2%} of {now} differ from {approved}"


def test_a_page_without_one_tile_is_not_taken_for_the_approved_one(page: Page, tmp_path: Path) -> None:
    page.run("document.querySelector('#budget').parentElement.style.opacity = 0")
    try:
        found = drawn(page, 1280, "light", tmp_path / "without.png")
    finally:
        page.run("document.querySelector('#budget').parentElement.style.opacity = ''")
    assert difference(found, blocks(HERE / "approved" / "1280-light.png")) > TOLERATED
