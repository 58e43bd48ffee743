"""Triton's perf_analyzer, unmodified, where it is installed: `pip install perf-analyzer` (glibc 2.38).

It reads the model's metadata and configuration, fills every input that they list, and reports what the
statistics count.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from polyrec.server.child import ServerProcess

PROGRAM = shutil.which("perf_analyzer", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.mark.long
@pytest.mark.skipif(PROGRAM is None, reason="perf_analyzer is not on PATH")
@pytest.mark.parametrize("rows", [1, 8])
def test_perf_analyzer_measures_and_reads_the_statistics(server: ServerProcess, rows: int) -> None:
    assert PROGRAM is not None
    command = [PROGRAM, "-m", "trivago", "-u", server.url.removeprefix("http://"), "-b", str(rows)]
    # enough windows to end however unsteady a busy machine is
    command += ["--input-data", "zero", "--measurement-interval", "500", "--stability-percentage", "999"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    asked = re.search(r"Request count: (\d+)", done.stdout)
    counted = re.search(r"Inference count: (\d+)", done.stdout)
    assert asked is not None, done.stdout
    assert counted is not None, done.stdout
    assert int(counted[1]) >= rows * int(asked[1]) > 0
