from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from polyrec.loadtest.results.outcome import Outcome
from polyrec.report.load.run import write_run
from tests.loadtest.runs import outcome_of
from tests.report.test_page import Outline

QUALITY = {"good@cpu": 0.961, "fast@cpu": 0.958}


def busy() -> Outcome:
    """Ten seconds, the middle of them overloaded: slower answers, a cheaper path, rejections."""
    random = np.random.default_rng(3)
    due = np.sort(np.concatenate([random.uniform(0, 10, 2000), random.uniform(4, 6, 3000)]))
    crowded = (due > 4) & (due < 6)
    latency = random.lognormal(-6, 0.4, due.size) * np.where(crowded, 2.2, 1.0)
    status = np.where(crowded & (random.random(due.size) < 0.1), 429, 200)
    return outcome_of(
        due,
        latency,
        status=status,
        path=crowded.astype(int),
        rows=random.integers(5, 26, due.size),
        degraded=crowded,
        seconds=10.0,
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    setup = {"machine": "a <test>", "plan": "good@cpu, fast@cpu"}
    return write_run(tmp_path_factory.mktemp("report"), busy(), QUALITY, setup)


def test_the_page_needs_nothing_else_and_reports_what_happened(page: Path) -> None:
    text = page.read_text()
    outline = Outline(text)
    assert all(link.startswith("data:") for link in outline.links)
    assert "<script" not in text
    for expected in (
        "SLO missed:",
        "requests were answered within 10 ms (target 99%)",
        "Latency",
        "Which path answered",
        "Quality",
        "a <test>",
    ):
        assert expected in outline.text


def test_the_json_has_the_figures_and_the_whole_distribution(page: Path) -> None:
    made = json.loads((page.parent / "report.json").read_text())
    outcome = busy()
    assert made["figures"]["requests"] == outcome.due_s.size
    assert sum(made["latency_histogram"]["count"]) == int(outcome.answered.sum())
    assert len(made["timeline"]["at_s"]) == len(made["timeline"]["quality"])


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_browser_shows_the_page_without_errors(page: Path, tmp_path: Path, dark: bool) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    shot = tmp_path / "shot.png"
    done = subprocess.run(
        [
            chromium,
            *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"),
            *("--window-size=1280,1000", f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={shot}"),
            *(("--blink-settings=preferredColorScheme=0",) if dark else ()),
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert "CONSOLE" not in done.stderr
    pixels = _pixels(shot)
    assert pixels.shape[:2] == (1000, 1280)
    corner = pixels[0, 0].mean()
    assert corner < 0.2 if dark else corner > 0.9
    # text and lines: neither an empty nor a full page
    drawn = np.abs(pixels.mean(2) - corner) > 0.2
    assert 0.01 < drawn.mean() < 0.5


def _pixels(file: Path) -> np.ndarray:
    matplotlib = pytest.importorskip("matplotlib.image", reason="matplotlib is not installed")
    return matplotlib.imread(file)[:, :, :3]
