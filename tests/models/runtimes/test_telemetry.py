"""Runtimes record and send no usage data."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
USE = """
import sys
from polyrec.models.runtimes.registry import runtimes_for, why_unusable
for name in runtimes_for("cpu"):
    assert why_unusable(name, "cpu") is None
assert "openvino_telemetry" not in sys.modules
"""


def used(home: Path, **environ: str) -> list[str]:
    """The files in the home folder after a session has executed."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ORT_", "XDG_"))}
    clean |= {"HOME": str(home), "PYTHONPATH": str(ROOT)} | environ
    subprocess.run([sys.executable, "-c", USE], env=clean, cwd=home, check=True, timeout=120)
    return [str(found.relative_to(home)) for found in home.rglob("*")]


@pytest.mark.long
def test_importing_and_using_it_writes_no_file_into_the_home_folder(tmp_path: Path) -> None:
    assert used(tmp_path) == []


def test_a_telemetry_setting_of_the_operator_is_kept(tmp_path: Path) -> None:
    script = "import polyrec.models.runtimes, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    environ = os.environ | {"ORT_DISABLE_TELEMETRY": "0", "PYTHONPATH": str(ROOT)}
    said = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True)
    assert said.stdout.strip() == "0"


def test_the_image_says_it_as_well() -> None:
    assert "ORT_DISABLE_TELEMETRY=1" in (ROOT / "Dockerfile").read_text()
