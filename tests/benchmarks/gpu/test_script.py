"""benchmarks/gpu.sh: its steps, its time limit, and that it runs every test that needs a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "benchmarks" / "gpu.sh"


def run(out: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"DEVICE": "cpu", "PYTHON": sys.executable, "OUT": str(out)} | settings
    return subprocess.run(["bash", SCRIPT], env=environ, capture_output=True, text=True, timeout=120)


def test_every_test_marked_gpu_is_run() -> None:
    files = [file.relative_to(ROOT) for file in (ROOT / "tests").rglob("test_*.py")]
    marked = [
        file
        for file in files
        if re.search(r"^@pytest\.mark\.gpu|marks=pytest\.mark\.gpu", (ROOT / file).read_text(), re.M)
    ]
    named = [Path(name) for name in re.findall(r"tests/[\w/.]+", SCRIPT.read_text())]
    assert marked
    assert [file for file in marked if not any(file.is_relative_to(name) for name in named)] == []


def test_a_step_that_fails_does_not_stop_the_next(tmp_path: Path) -> None:
    done = run(tmp_path, STEPS="nonsense training", LIMIT_S="0")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert "no step 'nonsense'" in lines
    assert "no time is left" in done.stderr
    assert re.fullmatch(r"nonsense: status 1 after \d+ s", lines[-2])
    assert re.fullmatch(r"training: status 124 after \d+ s", lines[-1])
